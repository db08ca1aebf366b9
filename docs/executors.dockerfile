# Executors for Spark on Kubernetes, with Headgate in an environment of their own beside Spark's image.
# This recipe is untried: hadolint checks it in `make lint`, and no image was built from it.
#
#   make dist
#   docker build -f docs/executors.dockerfile --build-arg SPARK_IMAGE=<your image of Spark> -t <name> .
#
# The image of Spark must have a Python 3.11 or newer with its module `venv`, of the driver's minor version.
ARG SPARK_IMAGE
FROM ${SPARK_IMAGE}

USER 0
COPY dist/*.whl /opt/wheels/
RUN python3 -m venv /opt/headgate \
 && /opt/headgate/bin/pip install --no-cache-dir /opt/wheels/*.whl "pandas>=2.2,<3"

# The user of Spark's own images.
USER 185
