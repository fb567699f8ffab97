/* The demo shop: one slot, one visitor, and a log of everything that handbill.js does. */
(function () {
  "use strict";
  const here = new URLSearchParams(location.search);
  const writeKey = here.get("write_key") || document.body.dataset.writeKey;
  const placement = here.get("placement") || document.body.dataset.placement;
  const $ = (id) => document.getElementById(id);

  function say(text, kind = "") {
    const line = document.createElement("li");
    const when = document.createElement("time");
    when.textContent = new Date().toLocaleTimeString([], { hour12: false });
    line.className = kind;
    line.append(when, text);
    $("log").prepend(line);
    while ($("log").children.length > 12) $("log").lastChild.remove();
  }

  if (!writeKey) {
    $("none").hidden = false;
    $("again").disabled = $("other").disabled = true;
    return;
  }

  function visitor(fresh) {
    const known = !fresh && localStorage.getItem("demo-visitor");
    const name = known || "visitor-" + Math.random().toString(36).slice(2, 8);
    localStorage.setItem("demo-visitor", name);
    $("user").textContent = name;
    return name;
  }

  const handbill = (window.handbill = new window.Handbill({ writeKey, user: visitor(false) }));
  const bar = $("bar");

  document.addEventListener("handbill:decided", ({ detail }) => {
    const count = detail.decisions.reduce((sum, one) => sum + one.banners.length, 0);
    if (detail.error) say("No answer, so no banner; the shop goes on without.", "bad");
    else say(count ? "The server chose a banner for you." : "Nothing to show: your share is used up for now.");
  });
  document.addEventListener("handbill:shown", ({ detail: { showing } }) => {
    const seconds = showing.banner.z_duration_sec;
    say(`It is on the screen, for ${seconds} s.`);
    bar.hidden = false;
    bar.firstElementChild.animate([{ transform: "none" }, { transform: "scaleX(0)" }], { duration: seconds * 1000 });
  });
  document.addEventListener("handbill:empty", () => say("The banner has nothing to show; it is passed over.", "bad"));
  document.addEventListener("handbill:viewable", () => say("Half of it was in view for a second: viewable."));
  document.addEventListener("handbill:closed", ({ detail: { how, report, showing } }) => {
    bar.hidden = true;
    const seen = (report.view_duration_ms / 1000).toFixed(1);
    const counts = report.dismissed || report.view_duration_ms >= showing.banner.z_duration_sec * 1000;
    const why = { timer: "Its time is over", dismiss: "You closed it", leave: "You left" }[how];
    say(`${why} after ${seen} s: ${counts ? "this counts as a view" : "this does not count"}.`, counts ? "good" : "bad");
  });
  document.addEventListener("handbill:sent", ({ detail: { kind, status, count } }) => {
    const what = count > 1 ? `${count} ${kind}s` : kind;
    if (status === 202) say(`The server keeps the ${what}.`, "good");
    else if (status) say(`The server refused the ${what} (${status}).`, "bad");
    else say(`No connection: the ${what} waits here.`, "bad");
  });
  addEventListener("offline", () => say("The network is gone. What you see is remembered here.", "bad"));
  addEventListener("online", () => say("The network is back.", "good"));

  const open = () => handbill.show($("slot"), placement || undefined);
  $("again").addEventListener("click", open);
  $("other").addEventListener("click", () => {
    handbill.reset(); // somebody else on the same screen, not another name of the one before
    handbill.identify(visitor(true)).catch(() => {}); // told in the log
    open();
  });
  handbill.page().catch(() => {});
  open();
})();
