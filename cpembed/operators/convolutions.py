"""Every convolution, as a statement with channels first, its parameters and its layouts.

A padded image reads as zero outside its shape. Axes are in the order of the output's indices, then
of the filter's.

>>> str(conv2d(n=1, c=3, h=8, w=8, k=4, r=3, s=3, pad=1, stride=2))
'O[n, k, p, q] += (I[n, c, 2*p + r - 1, 2*q + s - 1] * W[k, c, r, s])'
>>> str(transposed_conv2d(n=1, c=4, h=8, w=8, k=3, r=3, s=3, pad=1, stride=2))
'O[n, k, p, q] += (I[n, c, p + r - 1, q + s - 1] * W[c, k, -r + 2, -s + 2])'
"""

from __future__ import annotations

from cpembed.operators.family import Parameter
from cpembed.operators.stencil import (
    DILATION,
    WINDOW,
    ImageAxis,
    convolution,
    image_sizes,
    layout_parameter,
    per_axis_parameter,
)

conv1d = convolution(
    "conv1d",
    "1-D convolution",
    "O[n,k,q] += I[n,c,q+s] * W[k,c,s]",
    (*image_sizes("ncwks"), *WINDOW, layout_parameter("NCW", "NWC", "with weights KSC")),
)
conv2d = convolution(
    "conv2d",
    "2-D convolution",
    "O[n,k,p,q] += I[n,c,p+r,q+s] * W[k,c,r,s]",
    (
        *image_sizes("nchwkrs", c="input channels (of one group)", k="filters (of one group)"),
        *WINDOW,
        Parameter("groups", "independent groups of c channels and k filters", default="1"),
        layout_parameter("NCHW", "NHWC", "with weights KRSC"),
    ),
)
"""Operands by layout: NCHW has I [n,c,h,w], W [k,c,r,s] and O [n,k,p,q]; NHWC has I [n,h,w,c],
W [k,r,s,c] and O [n,p,q,k]; NCHW16c, or another number, has I [n,c,h,w,ci], W [k,ki,c,ci,r,s] (KCRS
in memory) and O [n,k,p,q,ki].

With ``groups`` above 1 there is an axis g after n, and c and k are the channels and filters of one
group. Channels are then two dimensions, group and channel within it: I [n,g,c,h,w] and
O [n,g,k,p,q] (NHWC: I [n,h,w,g,c] and O [n,p,q,g,k]), W has g first. In memory that is the usual
layout with ``groups * c`` and ``groups * k`` channels: a reshape."""
conv3d = convolution(
    "conv3d",
    "3-D convolution",
    "O[n,k,o,p,q] += I[n,c,o+t,p+r,q+s] * W[k,c,t,r,s]",
    (*image_sizes("ncdhwktrs"), *WINDOW, layout_parameter("NCDHW", "NDHWC", "with weights KTRSC")),
)
depthwise = convolution(
    "depthwise",
    "depthwise 2-D convolution",
    "O[n,c,p,q] += I[n,c,p+r,q+s] * W[c,r,s]",
    (
        *image_sizes("nchwrs", c="channels"),
        Parameter("m", "filters per channel", default="1"),
        *WINDOW,
        layout_parameter("NCHW", "NHWC", "(weights CRS either way)"),
    ),
)
"""Every channel has its own filter. With a multiplier ``m`` above 1 there is an axis m after c (in
blocks ci), also in W and O: in memory the usual layout with ``m * c`` channels, blocks of the
output ``m`` times as large."""
batched_conv2d = convolution(
    "batched_conv2d",
    "2-D convolution with filters per image",
    "O[n,k,p,q] += I[n,c,p+r,q+s] * W[n,k,c,r,s]",
    (
        *image_sizes("nchwkrs", n="images, each with its own filters", k="filters of one image"),
        *WINDOW,
    ),
)
"""A batch of independent convolutions: conditionally parameterised convolutions (CondConv, 2019)
compute the filters from the image, and AMOS (2022, "BCV") takes them as an operand."""
capsule_conv2d = convolution(
    "capsule_conv2d",
    "2-D convolution into capsules",
    "O[n,k,p,q,u] += I[n,c,p+r,q+s] * W[k,c,r,s,u]",
    (*image_sizes("nchwkrsu", u="components of a capsule"), *WINDOW),
)
"""The form of AMOS (2022, "CAP"): u counts the components of an output capsule, the image has plain
pixels. The products of pose matrices of "Matrix capsules with EM routing" (2018) have a further
reduction inside the capsule; write them as an expression, ``... I[n,c,p+r,q+s,u,x] *
W[k,c,r,s,x,v]``."""
transposed_conv2d = convolution(
    "transposed_conv2d",
    "transposed 2-D convolution",
    "O[n,k,p,q] += I[n,c,p+r,q+s] * W[c,k,R-1-r,S-1-s]",
    (
        *image_sizes(
            "nchwkrs",
            h="image rows before they are spread",
            w="image columns before they are spread",
            k="output channels",
        ),
        per_axis_parameter("pad", "output rows and columns cut off each edge", 0),
        per_axis_parameter("stride", "distance of pixels in the spread image", 1),
        DILATION,
        per_axis_parameter("output_pad", "output rows and columns added at the end", 0),
    ),
    axis=ImageAxis.spread,
    remedy="enlarge {0} or {1}, or shrink pad",
    note=", I spread",
)
"""The gradient of a convolution by its image. Every pixel (y, x) adds its multiple of the filter to
the output at row ``stride*y + dilation*r - pad``; columns alike. Gathered, an output row reads the
pixels whose row is a multiple of the stride apart, which no affine index says. So the operand I is
the *spread* image, with ``stride - 1`` zeros between pixels: I [n, c, stride*(h-1)+1,
stride*(w-1)+1]. On it the operator is an ordinary convolution of stride 1 with the filter turned by
180 degrees, which is also the form of AMOS (2022, "T2D"). The turn is in the index, ``r' = R-1-r``:
W [c,k,r,s] is the filter of the forward convolution. ``macs`` counts products with the zeros of the
spread image, ``useful_macs`` those with pixels. Rows and columns of ``output_pad`` are those that
the filter reaches only in part: fewer than the stride or the dilation."""
