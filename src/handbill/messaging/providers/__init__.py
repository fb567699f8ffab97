"""Providers: who carries a message. The port says what a core needs of one; each adapter is a module."""
