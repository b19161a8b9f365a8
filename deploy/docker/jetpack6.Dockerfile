# An application on a board with JetPack 6.1 or 6.2 (L4T 36.4): CUDA 12.6 and TensorRT 10.3 are in the base. Build and run
# it on the board, beside an export/ folder whose engine was built there:
#
#   docker build -f deploy/docker/jetpack6.Dockerfile -t edgevit-app .
#   docker run --rm --runtime nvidia -v "$PWD/runs/t1/export:/export:ro" -v "$PWD/images:/images:ro" edgevit-app \
#       /export /images/cat.jpg
#
# A container's TensorRT must be the one that built the engine: 10.3.0 here and on JetPack 6.1 and 6.2.
FROM nvcr.io/nvidia/l4t-jetpack:r36.4.0

RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-numpy python3-pil python3-libnvinfer \
    && rm -rf /var/lib/apt/lists/*

COPY deploy/examples/classify.py /opt/classify.py
ENTRYPOINT ["python3", "/opt/classify.py"]
