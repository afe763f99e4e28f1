"""The retry loop, the waits between retries, and the choice of the target (a model at an endpoint) for each request.

The package uses the API and the clock only through interfaces (ports).
"""
