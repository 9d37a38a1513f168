# docker build -t llama-batch-pipeline . && docker run --rm -v "$PWD:/work" llama-batch-pipeline job=my_job.yaml
# For another architecture: docker buildx build --platform linux/arm64 (docs/install.md). GCC 14 is needed on arm64.
FROM python:3.13-slim-trixie AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /checkout
RUN sh /checkout/tools/build/image.sh /checkout /opt/pipeline

FROM python:3.13-slim-trixie
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home pipeline
COPY --from=build /opt/pipeline /opt/pipeline
USER pipeline
WORKDIR /work
# Any user may run it (docker run --user): what is kept beside the results goes to a folder that all may write.
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1
# For `ray`, which KubeRay calls.
ENV PATH="/opt/pipeline/bin:$PATH"
ENTRYPOINT ["/opt/pipeline/bin/python", "-m", "pipeline"]
CMD ["--help"]
