"""Figures that the paper prints: Gao et al., swATOP, ICPP 2019, section 5."""

from __future__ import annotations

CORE_GROUPS = 4
"""SW26010 has four core groups; the paper's throughputs are of all, ours of one. Efficiencies are
comparable."""

PEAK_TFLOPS = 3.06
"""Peak of the four core groups (section 2)."""

BATCHES = (1, 32, 128)

LISTING_1 = {
    "channels": (64, 128, 256, 384, 512),
    "filters": (64, 128, 256, 384, 512),
    "rows": (32, 64, 128, 256),
}
"""Ni, No, Ro of listing 1, with Ni >= No; channels and filters in both loops, rows in the third."""

LISTING_2 = {
    "unaligned": (200, 500, 1000, 2000, 4000, 8000),
    "aligned": (256, 512, 768, 1024, 2048, 4096, 8192),
}
"""M, N and K of listing 2."""

SPEEDUP_IMPLICIT = {32: 1.44, 128: 1.32}
"""Figure 5, over swDNN, by batch; swDNN has nothing for a batch of 1."""

SPEEDUP_WINOGRAD = {1: 2.20, 32: 2.35, 128: 2.33}
"""Figure 6, over xMath."""

EXPLICIT_BETTER = {1: 40, 32: 29, 128: 32}
"""Figure 7: in how many of 43 cases swATOP is faster than xMath."""

EXPLICIT_CASES, EXPLICIT_BEST = 43, 15.2

TABLE_1 = {
    "implicit": {1: "75 (no other)", 32: "75 (+45 %)", 128: "75 (+44 %)"},
    "explicit": {
        1: "54 (+21 %), 21 slower (-17 %)",
        32: "59 (+23 %), 16 slower (-22 %)",
        128: "55 (+26 %), 20 slower (-22 %)",
    },
    "winograd_2x2": {1: "75 (+316 %)", 32: "75 (+295 %)", 128: "75 (+306 %)"},
}
"""Cases where swATOP is faster than swDNN (implicit) or xMath, and by how much on average."""

EFFICIENCY = {
    "implicit": {1: 0.70, 32: 0.70, 128: 0.70},
    "winograd_2x2": {1: 1 / PEAK_TFLOPS, 32: 0.60, 128: 0.60},
}
"""Figure 8 in words, over the 225 configurations: "over 2.1 TFLOPS (70% efficiency)" for implicit
convolutions of all batches, "over 1.9 TFLOPS (60%)" for Winograd in training, "over 1 TFLOPS" for
inference; "the average efficiency of Explicit CONV is relative low"."""

BEST_WINOGRAD = 1.20
"""Figure 8: "near 120%"."""

TABLE_2 = {
    "aligned": {"faster": 250, "by": 0.316, "slower": 93, "slower_by": 0.066},
    "unaligned": {"faster": 207, "by": 0.498, "slower": 9, "slower_by": 0.043},
}
"""Matrix products beside xMath."""

TABLE_3 = {
    "VGG16": {"total": 4068, "average": 454.2, "black_box": "47 h 50 min", "swatop_min": 6.4},
    "ResNet": {"total": 7064, "average": 353.7, "black_box": "83 h 6 min", "swatop_min": 14.1},
    "Yolo": {"total": 5112, "average": 365.1, "black_box": "60 h 10 min", "swatop_min": 9.9},
}
"""Schedules of implicit convolutions, and the time to tune all layers of a network."""

CHOICE_LOSS = {"mean": 0.02, "worst": 0.08}
"""Figure 9: the model's choice beside the best of brute force."""

PREFETCHING = 0.654
"""Figure 10: what prefetching gains on average over eight configurations."""

PADDING = 0.05
"""Figure 11: what light padding costs at most of the time of a product."""
