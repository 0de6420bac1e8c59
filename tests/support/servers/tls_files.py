"""The files of a server that uses TLS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc
import trustme

NAME = "voxcpm.test"
OPTIONS = (("grpc.ssl_target_name_override", NAME),)


@dataclass(frozen=True)
class Files:
    """The files of a server, in a folder."""

    folder: Path
    ca: trustme.CA

    @property
    def settings(self) -> dict[str, Path]:
        return {"cert": self.folder / "cert.pem", "key": self.folder / "key.pem"}

    @classmethod
    def new(cls, folder: Path) -> Files:
        """Files of a new authority, written to a folder."""
        made = cls(folder, trustme.CA())
        made.write()
        return made

    def write(self, ca: trustme.CA | None = None) -> None:
        """Write a new certificate and its key, of the authority or of another one."""
        made = (ca or self.ca).issue_cert(NAME)
        self.settings["key"].write_bytes(made.private_key_pem.bytes())
        self.settings["cert"].write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))

    def credentials(self, client: trustme.LeafCert | None = None) -> grpc.ChannelCredentials:
        """The credentials of a client that trusts the authority."""
        key, chain = (client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()) if client else (None, None)
        return grpc.ssl_channel_credentials(self.ca.cert_pem.bytes(), key, chain)
