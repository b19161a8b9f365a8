# The host: derive, export, evaluate, and bench boards over SSH. CPU only.
#
#   docker build -f deploy/docker/host.Dockerfile -t edgevit .
#   docker run --rm -it -v "$PWD:/work" -v "$HOME/.ssh:/ssh:ro" edgevit edgevit --help
FROM python:3.12-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openssh-client \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/edgevit
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY profiles ./profiles
COPY edgevit ./edgevit
COPY deploy/examples ./deploy/examples
RUN pip install --no-cache-dir --constraint constraints.txt '.[cpu,rtx]'

WORKDIR /work
# ssh refuses a configuration that another user owns, so root gets copies of its own.
ENTRYPOINT ["sh", "-c", "if [ -d /ssh ]; then cp -r /ssh /root/.ssh; fi; exec \"$@\"", "edgevit"]
CMD ["edgevit", "--help"]
