# An application on an Orin with JetPack 7.2 (L4T 39.2). From 7.2 on Orin runs the ordinary ARM images. Not the -igpu ones:
# their TensorRT (10.11) needs libnvdla_compiler.so, which JetPack 7.2 no longer has, and `import tensorrt` fails.
#
#   docker build -f deploy/docker/jetpack7.Dockerfile -t edgevit-app .
#   docker run --rm --runtime nvidia -v "$PWD/runs/t1/export:/export:ro" -v "$PWD/images:/images:ro" edgevit-app \
#       /export /images/cat.jpg
#
# This base has TensorRT 10.16.1 and JetPack 7.2 has 10.16.2: TensorRT may refuse the board's engine. Then build the engine
# in the container: `edgevit export ... --trt` there, or trtexec, which the base brings.
FROM nvcr.io/nvidia/tensorrt:26.04-py3

RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-numpy python3-pil \
    && rm -rf /var/lib/apt/lists/*

COPY deploy/examples/classify.py /opt/classify.py

ENTRYPOINT ["python3", "/opt/classify.py"]
