"""Which names and addresses this machine alone can reach, and which Host headers to accept."""

import ipaddress

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def is_loopback(host: str) -> bool:
    """True for a host that only this machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def allowed_hosts(host: str) -> list[str]:
    """Host headers to accept when bound to `host`; a wildcard address accepts any."""
    if host in ("0.0.0.0", "::"):
        return ["*"]
    # the Host header writes an IPv6 address in brackets
    header = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return [*LOOPBACK_HOSTS, header]
