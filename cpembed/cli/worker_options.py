"""Options of the processes or machines that do a command's work, and the workers that they open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cpembed.cli.options import require_one
from cpembed.cli.output import message
from cpembed.cli.parameters import options_of
from cpembed.driver.options import option

if TYPE_CHECKING:
    from cpembed.runtime.cluster import Workers
    from cpembed.runtime.cluster.connection import Tls


@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """Options of the certificates for the connection to a scheduler."""

    tls_ca_file: str | None = option(
        None,
        "TLS: the authority that signed the certificates of the cluster's members, in PEM form. "
        "Missing values are taken from Dask's configuration.",
        metavar="FILE",
    )
    tls_cert: str | None = option(None, "TLS: the certificate of this process.", metavar="FILE")
    tls_key: str | None = option(
        None,
        "TLS: its private key, if the certificate's file does not contain it.",
        metavar="FILE",
    )

    @property
    def certificates(self) -> Tls:
        """Certificates of the connection."""
        from cpembed.runtime.cluster.connection import Tls

        return Tls(self.tls_ca_file, self.tls_cert, self.tls_key)


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options of the processes or machines that do the work."""

    workers: int | None = option(
        None,
        "Work in N processes of this machine. Timing tasks are rejected: concurrent processes "
        "would distort them.",
        metavar="N",
        limits=(1, None),
    )
    cluster: str | None = option(
        None,
        "Work on a Dask cluster: its scheduler's address, or a file that contains it; see "
        "`cpembed worker`.",
        metavar="ADDRESS|FILE",
    )
    tls: TlsOptions = options_of(TlsOptions)

    def open(self, *, compiles: bool = True) -> Workers:
        """Open the workers, a context manager.

        Parameters
        ----------
        compiles : bool, default True
            As for :func:`~cpembed.runtime.cluster.open_workers`.
        """
        require_one(workers=self.workers is not None, cluster=self.cluster is not None)
        from cpembed.runtime.cluster import open_workers
        from cpembed.runtime.cluster.connection import exposed, scheduler_address

        tls = self.tls.certificates
        if self.cluster is not None:
            warning = exposed(scheduler_address(self.cluster, "tls" if tls.is_given else "tcp"))
            if warning is not None:
                message(warning)
        return open_workers(self.workers, self.cluster, compiles=compiles, tls=tls)
