"""Where an extra is not installed, modules that import it are not collected for their doctests.

Tests are: they say what they are skipped for.
"""

from importlib.util import find_spec

_MODULES = {
    "distributed": ("cpembed/runtime/cluster/warming.py",),
    "torch": (
        "cpembed/frontends/torch/*.py",
        "cpembed/targets/cuda/baselines/libraries.py",
        "tests/unit/frontends/torch/[!t]*.py",
    ),
    "triton": ("cpembed/targets/cuda/baselines/triton_product.py",),
}

collect_ignore_glob = [
    pattern
    for extra, patterns in _MODULES.items()
    if find_spec(extra) is None
    for pattern in patterns
]
