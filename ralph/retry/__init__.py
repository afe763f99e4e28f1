"""The retry loop, the waits between retries, and the choice of a target for each request. A target is a model at an
endpoint. The package uses the API and the clock only through interfaces (ports).
"""
