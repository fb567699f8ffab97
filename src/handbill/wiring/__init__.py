"""The only constructor: settings become engines, engines become services, services become a House."""
