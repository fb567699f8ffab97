"""Whom a banner is for: rules read with every fault, compiled into masks, asked once per request."""
