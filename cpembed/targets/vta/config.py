"""VTA's configuration: sizes as powers of two, and everything that follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from cpembed.targets.vta.isa import Memory


@dataclass(frozen=True)
class VtaConfig:
    """Log2 sizes, named as VTA's configuration file names them; buffers in bytes.

    The defaults are the machine of VTA's repository: GEMM 1x16x16.
    """

    log_batch: int = 0
    log_block: int = 4
    log_inp_width: int = 3
    log_wgt_width: int = 3
    log_acc_width: int = 5
    log_out_width: int = 3
    log_uop_buff: int = 15
    log_inp_buff: int = 15
    log_wgt_buff: int = 18
    log_acc_buff: int = 17

    @property
    def batch(self) -> int:
        return 1 << self.log_batch

    @property
    def block(self) -> int:
        return 1 << self.log_block

    def tile_shape(self, memory: Memory) -> tuple[int, int]:
        """Rows and columns of a memory's element: INP ``[batch, block]``, WGT ``[block (output),
        block (input)]``, ACC and OUT ``[batch, block]``; a micro-op is one word."""
        if memory is Memory.UOP:
            return 1, 1
        return (self.block if memory is Memory.WGT else self.batch), self.block

    def element_bytes(self, memory: Memory) -> int:
        """Size of an element of a memory in DRAM."""
        if memory is Memory.UOP:
            return 4
        rows, columns = self.tile_shape(memory)
        return rows * columns * (1 << self._log_width(memory)) // 8

    def log_elements(self, memory: Memory) -> int:
        """Log2 of the number of elements a buffer holds; OUT mirrors ACC."""
        if memory is Memory.UOP:
            return self.log_uop_buff - 2
        if memory is Memory.INP:
            return self.log_inp_buff - self.log_batch - self.log_block - self.log_inp_width + 3
        if memory is Memory.WGT:
            return self.log_wgt_buff - 2 * self.log_block - self.log_wgt_width + 3
        return self.log_acc_buff - self.log_batch - self.log_block - self.log_acc_width + 3

    def elements(self, memory: Memory) -> int:
        """Number of elements a buffer holds."""
        return 1 << self.log_elements(memory)

    def _log_width(self, memory: Memory) -> int:
        return {
            Memory.INP: self.log_inp_width,
            Memory.WGT: self.log_wgt_width,
            Memory.ACC: self.log_acc_width,
            Memory.OUT: self.log_out_width,
        }[memory]
