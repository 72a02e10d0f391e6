"""The timeline of a network in Chrome's trace format."""

import json

from cpembed.report.network_trace import chrome_trace
from tests.unit.report.network_documents import document, operator, product


def test_steps_lie_one_behind_the_other() -> None:
    network = document(
        [
            product("conv", ["x"], ["y"]),
            operator("add", ["y"], ["z"], measured_us=None),
        ],
        threads=2,
        provenance="measured",
    )
    network["tensors"]["x"]["conversions"] = [{"to": "NHWC", "us": 4.0}]
    network["tensors"]["y"]["conversions"] = [{"to": "NCHW", "us": 3.0}]
    trace = chrome_trace(network)
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(e["cat"], e["name"], e["ts"], e["dur"]) for e in spans] == [
        ("conversion", "x to NHWC", 0.0, 4.0),
        ("product", "conv", 4.0, 131.5),
        ("conversion", "y to NCHW", 135.5, 3.0),
        # What was not measured is as long as its estimate.
        ("operator", "add", 138.5, 2.0),
    ]
    assert spans[1]["args"]["macs"] == 115_605_504
    assert abs(spans[1]["args"]["gmac_per_s"] - 115_605_504 / 131.5e3) < 1e-6
    named = {event["tid"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert {event["tid"] for event in spans} <= named
    assert trace["otherData"]["provenance"] == "measured"
    json.dumps(trace)


def test_cycles_of_an_accelerator() -> None:
    network = document(
        [
            product("conv", ["x"], ["y"], measured_us=None, predicted_us=None, cycles=700),
            operator("softmax", ["y"], ["z"], measured_us=None, predicted_us=None, cycles=None),
        ],
        threads=1,
        provenance="simulated",
        unit="cycles",
    )
    trace = chrome_trace(network)
    (span,) = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert (span["name"], span["dur"], span["args"]["cycles"]) == ("conv", 700, 700)
    assert trace["otherData"]["unit"] == "cycles"


def test_operators_that_run_elsewhere_lie_between_the_libraries() -> None:
    libraries = [
        document([product("conv", ["x"], ["y"])], "small_0", provenance="measured"),
        document([operator("add", ["d"], ["z"])], "small_2", provenance="measured"),
    ]
    det = {"operator": "det", "kind": "Det (onnxruntime)", "measured_us": 7.0, "after_parts": 1}
    network = {"network": "small", "target": "native", "parts": libraries, "fallback": [det]}
    trace = chrome_trace(network)
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(e["cat"], e["name"], e["ts"], e["dur"]) for e in spans] == [
        ("product", "conv", 0.0, 131.5),
        ("fallback", "det", 131.5, 7.0),
        ("operator", "add", 138.5, 2.5),
    ]
    named = {event["tid"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert {event["tid"] for event in spans} <= named
    assert trace["otherData"]["threads"] == 2
    # Nothing but operators that run elsewhere.
    alone = {**network, "parts": [], "fallback": [{**det, "after_parts": 0}]}
    assert [e["dur"] for e in chrome_trace(alone)["traceEvents"] if e["ph"] == "X"] == [7.0]
