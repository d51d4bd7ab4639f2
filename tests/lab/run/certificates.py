"""An authority for one test, and a certificate of it."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

FIRST, LAST = datetime.datetime(2020, 1, 1), datetime.datetime(2120, 1, 1)


def authority(folder: Path) -> dict[str, Path]:
    """Write the files of an authority and of one certificate that client, scheduler and worker share."""
    folder.mkdir(parents=True, exist_ok=True)
    root_key, shared_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = _certificate("authority", root_key, "authority", root_key, x509.BasicConstraints(ca=True, path_length=None))
    shared = _certificate("sweep", shared_key, "authority", root_key, x509.BasicConstraints(ca=False, path_length=None))
    private = shared_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    contents = {
        "tls_ca": root.public_bytes(serialization.Encoding.PEM),
        "tls_cert": shared.public_bytes(serialization.Encoding.PEM),
        "tls_key": private,
    }
    paths = {name: folder / f"{name}.pem" for name in contents}
    for name, path in paths.items():
        path.write_bytes(contents[name])
    return paths


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    constraints: x509.BasicConstraints,
) -> x509.Certificate:
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]),
        subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=FIRST,
        not_valid_after=LAST,
    )
    return builder.add_extension(constraints, critical=True).sign(issuer_key, hashes.SHA256())
