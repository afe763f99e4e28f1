"""Opens connections to servers: the address, the proxy and the authorities to trust."""

AUTHORITIES = ("SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""The variables that name further authorities. SSL_CERT_FILE is a setting, which replaces all others."""
