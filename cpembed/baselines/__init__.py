"""Other people's kernels of the same layers, run beside ours.

A :class:`~cpembed.baselines.base.Baseline` prepares a layer's operands in the layouts that
it likes and runs it; :mod:`cpembed.baselines.comparison` verifies it and times both sides.
:attr:`~cpembed.targets.base.Target.baselines` names what a target can be compared with.

How the comparison is kept fair:

- Both sides run in one process, on the same number of threads, on the same inputs, again and again:
  code, weights and, as far as they fit, data are in the caches.
- They are timed interleaved (:mod:`cpembed.measure.interleaved`). A round times a block of calls of
  each kind, and the next one goes through them the other way round; ratios are taken within a round, so that a
  machine that is slower for a while is so for both. What other processes take meanwhile is counted.
- Between blocks of different thread pools the process is left alone until the threads of the pool
  that ran before sleep. A pool spins for a while after its last call, hoping for the next (TVM's
  for about 80 ms on two cores, OpenMP's for 2 to 7 ms), and takes the other side's second core
  meanwhile: with blocks back to back, a convolution of 0.1 ms through torch took 8 ms, a slice of
  the scheduler. Both pools keep their own settings: one that sleeps at once must be woken in every
  call, which cost oneDNN about 10 us of 20 to 30 (``OMP_WAIT_POLICY=PASSIVE``, best of five runs).
- Every block begins with calls that are not timed: they wake the pool and fill the caches.
- Weights are packed ahead on both sides, and a baseline's image is in its favourite layout before
  the clock starts, whatever the layer's own layout is.
"""
