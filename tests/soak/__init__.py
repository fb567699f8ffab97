"""The long forms of the laws, seeded. A scenario is a module here with `async def run(ctx: Context) -> dict`."""
