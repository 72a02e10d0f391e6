"""Nothing here is collected where ONNX is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("onnx") else ["*.py"]
