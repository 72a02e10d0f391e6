"""Modules that go with saved kernels to a machine with a GPU.

They need Python 3.10, its standard library and the CUDA driver. They are copied beside the kernels,
so they import each other as neighbours there
(:func:`cpembed.targets.cuda.saving.folder.remote_text`).
"""
