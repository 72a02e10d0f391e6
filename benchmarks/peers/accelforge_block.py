"""A block of GPT-3 6.7B mapped by AccelForge; runs in its own environment, which has no cpembed.

Reads a request from standard input and writes latency and energy of the best mapping to standard
output, both as JSON. Workload and machine are those that AccelForge ships.
"""

import json
import sys
import time
from pathlib import Path

from accelforge import Spec, set_n_parallel_jobs
from accelforge.examples import examples
from accelforge.frontend.mapper.metrics import Metrics
from accelforge.mapper.FFM.mappings import Mappings

METRICS = {"energy": Metrics.ENERGY, "cycles": Metrics.LATENCY}
KEEP = "tensors: {keep: ~Intermediates, may_keep: All}"


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    # Pictures of mappings need Graphviz, and are not looked at.
    Mappings.render = lambda self, **options: ""
    set_n_parallel_jobs(1)
    machine = Path(examples.arches.tpu_v4i).read_text(encoding="utf-8")
    if not request["fused"]:
        # Main memory, the first one of the file, keeps every tensor.
        machine = machine.replace(KEEP, "tensors: {keep: All}", 1)
    path = Path("machine.yaml")
    path.write_text(machine, encoding="utf-8")
    sizes = {"N_TOKENS": request["tokens"], "BATCH_SIZE": 1}
    spec = Spec.from_yaml(path, examples.workloads.gpt3_6_7B, jinja_parse_data=sizes)
    spec.mapper.metrics = METRICS[request["objective"]]
    begin = time.process_time()
    result = spec.map_workload_to_arch(print_progress=False)
    seconds = time.process_time() - begin
    row = result.data.iloc[0].to_dict()
    latency, energy = float(row["Total<SEP>latency"]), float(row["Total<SEP>energy"])
    print(json.dumps({"ms": 1e3 * latency, "mJ": 1e3 * energy, "seconds": seconds}))


main()
