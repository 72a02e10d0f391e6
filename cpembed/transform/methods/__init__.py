"""Methods of convolutions: rewrites of a computation into parts around a product of matrices.

Nothing here knows a machine. A rewrite is a value that holds

- ``convolution``: windows, and which axes are groups, samples, channels and filters
  (:class:`~cpembed.transform.methods.convolution.Convolution`);
- ``product``: a :class:`~cpembed.ir.computation.Computation` of the operands V (of the image),
  U (of the weights, made ahead) and M, which is embedded like any other;
- ``image_part``, ``weights_part`` and ``output_part``: the same three parts in numpy, in whatever
  arithmetic the arrays have, ``Fraction`` objects included; generated code is tested against them.

:func:`~cpembed.transform.methods.convolution.explicit` is the rewrite by im2col, for any
convolution;
:func:`~cpembed.transform.methods.winograd.winograd` that by Winograd's method, whose ``tilings``
hold, window by window, the matrices (:class:`~cpembed.transform.methods.cook_toom.CookToom`), the
tiles and the place in the image where each one begins. A machine's code of a transform is made from
:func:`~cpembed.transform.methods.cook_toom.straight_line`: additions and multiplications by
constants, with common subexpressions shared. ``blocked`` is the product over some of the tiles, for
machines on which V and M of all would not fit a near memory.
"""
