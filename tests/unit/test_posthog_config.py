"""What PostHog's clients get beside events: always empty, whatever is asked, and safe to repeat in a script."""

from __future__ import annotations

import json
import re

import pytest

from handbill.events.dialects import posthog_config as config
from handbill.kit.fast import FastRequest

SCRIPT = re.compile(
    rb"\(function\(\)\{var c=window\._POSTHOG_REMOTE_CONFIG=window\._POSTHOG_REMOTE_CONFIG\|\|\{\};"
    rb'c\[("[A-Za-z0-9_-]+")\]=(\{.*\});\}\)\(\);\n'
)


def test_the_script_holds_the_configuration_under_the_clients_key() -> None:
    found = SCRIPT.fullmatch(config.config_script("hbw_aB-9"))
    assert found is not None
    assert json.loads(found[1]) == "hbw_aB-9"
    entry = json.loads(found[2])
    assert entry == {"config": json.loads(config.config("hbw_aB-9")), "siteApps": []}
    assert "surveys" not in entry["config"], "posthog-js would load the script of its surveys"


@pytest.mark.parametrize("token", ["", "a b", 'x";alert(1)//', "</script>", "ä", "a" * 201, "a/b", "a\n"])
def test_what_no_key_looks_like_is_not_repeated_in_a_script(token: str) -> None:
    assert not config.is_token(token)


@pytest.mark.parametrize("path", ["/surveys.js", "/lazy-recorder.js", "/1.434.18/surveys.js"])
def test_extensions_are_empty_scripts(path: str) -> None:
    assert config.is_extension(path)


@pytest.mark.parametrize(
    "path", ["/array.js", "/1.2.3/array.full.js", "/array-x.js", "/../secret.js", "/a.css", "/a/b/c.js"]
)
def test_posthog_js_itself_and_other_files_are_none(path: str) -> None:
    assert not config.is_extension(path)


async def test_every_address_replies_with_json_and_allows_other_sites() -> None:
    routes = config.routes()
    assert len({(route.method, route.path) for route in routes}) == len(routes)
    for route in routes:
        assert route.cors
        assert route.open_query
        request = FastRequest(route.method, route.path, b"token=any", {}, b"\xff", "203.0.113.9", "r")
        reply = await route.handler(request)
        assert reply.status == 200
        assert isinstance(json.loads(reply.body), dict)
