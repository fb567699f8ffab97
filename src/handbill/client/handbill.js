/* Shows banners, tells what was seen, sends a page's own events: <script src=".../handbill.js" data-write-key="hbw_..."
 * defer></script> and <div data-handbill="home"></div>. Reports wait until the server has them. See docs/clients.md. */
(function (root) {
  "use strict";

  /**
   * @typedef {{banner_id: string, z_duration_sec: number, variant?: string, title?: string, description?: string,
   *   image_url?: string, click_url?: string, token?: string, expires_at?: string}} Banner
   * @typedef {{placement?: string, placement_id?: string, banners: Banner[]}} Decision
   * @typedef {"timer"|"dismiss"|"leave"} How
   * @typedef {{id: string, banner: Banner, placement_id: string|null, user: string, session: string, at: number,
   *   device?: string, page?: string, referrer?: string, viewable?: boolean}} Showing
   * @typedef {{id: string, user: string|null, device: string, at: number, context: object}} Moment
   * @typedef {{kind: "impression"|"view"|"click"|"event", body: any, at: number, key: string}} Entry
   * @typedef {{url?: string, writeKey: string, user?: string, token?: string, consent?: string[],
   *   needsConsent?: string, ignoreDoNotTrack?: boolean, accidentalCloseMs?: number,
   *   timeoutMs?: number, context?: object,
   *   render?: (banner: Banner, close: {dismiss: () => void, href: string|null}) => Element}} Options
   */

  const DAY = 86400000;
  // A day inside the server's 35, past which it cannot tell a copy from a new event.
  const HORIZON_MS = 34 * DAY;
  const QUEUE_MAX = 200;
  const BATCH_MAX = 50;
  const ACCIDENTAL_MS = 500;
  const VIEWABLE_MS = 1000;
  const PATHS = { impression: "/api/banners/events/impression", view: "/views", click: "/api/banners/events/click" };
  const EVENTS = "/v1/events";

  /** A button hit sooner than anybody reads is no refusal. @param {number} visibleMs @param {How} how */
  function reportOf(visibleMs, how, accidentalMs = ACCIDENTAL_MS) {
    const ms = Math.max(0, Math.min(Math.floor(visibleMs), DAY));
    return { view_duration_ms: ms, dismissed: how === "dismiss" && ms >= accidentalMs };
  }

  /** What becomes of a report; status 0: no answer. @param {number} status @param {string|null} retryAfter */
  function fateOf(status, retryAfter, tries) {
    // 401 is kept: a fresh token may come.
    const keep = status === 0 || status >= 500 || [401, 408, 425, 429].includes(status);
    if (!keep) return { keep, waitMs: 0 };
    const told = /^\d{1,9}$/.test(retryAfter || "") ? Number(retryAfter) * 1000 : 0;
    return { keep, waitMs: told ? Math.min(told, 3600000) : Math.min(1000 * 2 ** tries, 300000) };
  }

  /** What may still be sent: nothing too old, and of too many the newest. @param {Entry[]} entries */
  function fitting(entries, now, max = QUEUE_MAX) {
    const fresh = entries.filter((entry) => entry.at > now - HORIZON_MS && entry.at < now + DAY);
    return fresh.sort((a, b) => a.at - b.at).slice(-max);
  }

  /** Anything unexpected is left out. @returns {Decision[]} */
  function decisionsOf(reply) {
    const found = reply && Array.isArray(reply.decisions) ? reply.decisions : [];
    return found
      .filter((one) => one && Array.isArray(one.banners))
      .map((one) => ({
        ...one,
        banners: one.banners.filter((it) => it && typeof it.banner_id === "string" && it.z_duration_sec > 0),
      }));
  }

  /** @param {Showing} s */
  function tracked(s, prefix) {
    return {
      bannerPublicId: s.banner.banner_id,
      placementPublicId: s.placement_id,
      correlationId: prefix + s.id,
      userId: s.user,
      sessionId: s.session,
      pageUrl: s.page,
      occurredAt: new Date(s.at).toISOString(),
    };
  }

  const bodyOf = {
    impression: (s) => full({ ...tracked(s, "imp_"), referrerUrl: s.referrer }),
    click: (s, destinationUrl) => full({ ...tracked(s, "clk_"), destinationUrl }),
    view: (s, report) =>
      full({
        banner_id: s.banner.banner_id,
        user_id: s.user,
        event_id: "view_" + s.id,
        ...report,
        viewable: s.viewable,
        token: s.banner.token,
        placement_id: s.placement_id,
        session_id: s.session,
        device_id: s.device,
      }),
    /** @param {Moment} m */
    event: (m, event, properties, user_properties) =>
      full({
        event,
        distinct_id: m.user || m.device,
        anonymous_id: m.user ? m.device : null,
        event_id: "evt_" + m.id,
        timestamp: new Date(m.at).toISOString(),
        properties,
        user_properties,
        context: full(m.context),
      }),
  };

  /** What was refused: by its place, or all of it. */
  function refusedOf(status, answer) {
    const told = [...(answer?.data?.rejected || []), ...(answer?.dropped || [])];
    const by = new Map(told.map((it) => [it.index, it.code || it.reason]));
    const all = answer?.quota_limited ? "QUOTA" : status < 300 || by.size ? undefined : answer?.code || "HTTP_" + status;
    return { by, all };
  }

  function full(body) {
    return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null && value !== undefined));
  }

  function newId() {
    return Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
  }

  /** A browser may refuse its storage. */
  function storage(name) {
    const memory = new Map();
    const attempt = (work, otherwise) => {
      try {
        return work(root[name]);
      } catch {
        return otherwise();
      }
    };
    return {
      get: (key) => memory.get(key) ?? attempt((s) => s.getItem(key), () => null),
      set: (key, value) => attempt((s) => s.setItem(key, value), () => memory.set(key, value)),
      drop: (key) => (memory.delete(key), attempt((s) => s.removeItem(key), () => null)),
      keys: () => [...memory.keys(), ...attempt((s) => Object.keys(s), () => [])],
    };
  }

  class Stopwatch {
    total = 0;
    since = null;
    run(on) {
      this.total = this.ms();
      this.since = on ? performance.now() : null;
    }
    ms() {
      return this.total + (this.since === null ? 0 : performance.now() - this.since);
    }
  }

  const STYLE = `:host{display:block}
.card{position:relative;display:flex;gap:1rem;align-items:center;padding:1rem 3rem 1rem 1rem;box-sizing:border-box;
font:inherit;color:var(--handbill-ink,#1d1d1f);background:var(--handbill-paper,#fff);
border:1px solid var(--handbill-line,#d9d9de);border-radius:var(--handbill-radius,12px)}
a{display:flex;gap:1rem;align-items:center;color:inherit;text-decoration:none;flex:1;min-width:0}
img{max-width:40%;max-height:9rem;border-radius:8px;object-fit:cover}
strong{display:block;font-size:1.15em}p{margin:.25em 0 0}
button{position:absolute;top:.5rem;right:.5rem;width:2rem;height:2rem;border:0;border-radius:50%;cursor:pointer;
font:1.2rem/1 system-ui;color:inherit;background:transparent}button:hover{background:rgba(0,0,0,.08)}`;

  class Handbill {
    /** @param {Options} options */
    constructor(options) {
      this.options = options;
      this.base = new URL(options.url || "/", root.location ? root.location.href : undefined).href;
      this.user = options.user || null;
      this.token = options.token || null;
      this.consents = options.consent || [];
      this.local = storage("localStorage");
      this.session = storage("sessionStorage");
      this.prefix = `hb:${options.writeKey.slice(-8)}:`;
      this.memory = {};
      this.open = new Map();
      this.waiting = new Map();
      this.tries = 0;
      this.busy = false;
      this.timer = 0;
      this.listeners = [
        [root, "online", () => this.flush()],
        [root, "pagehide", () => this.leave()],
        [document, "visibilitychange", () => (document.hidden ? this.beacon() : this.flush())],
      ];
      for (const [target, name, work] of this.listeners) target.addEventListener(name, work);
      this.flush();
    }

    /** May nobody be followed here? Banners are shown either way. */
    get quiet() {
      const told = navigator.doNotTrack === "1" || navigator.globalPrivacyControl === true;
      const needed = this.options.needsConsent;
      return (told && !this.options.ignoreDoNotTrack) || (!!needed && !this.consents.includes(needed));
    }

    kept(name, store) {
      const quiet = this.quiet;
      const known = this.memory[name] || (!quiet && store.get("hb-" + name)) || newId();
      if (!quiet) store.set("hb-" + name, known);
      return (this.memory[name] = known);
    }

    get device() {
      return this.kept("device", this.local);
    }

    get visit() {
      return this.kept("session", this.session);
    }

    /** Whatever goes wrong, the list is empty.
     * @param {{placements?: string[], limit?: number}} [ask] @returns {Promise<Decision[]>} */
    async decide(ask = {}) {
      try {
        const context = {
          url: bare(root.location.href),
          referrer: bare(document.referrer),
          language: navigator.language,
          time_zone: Intl.DateTimeFormat().resolvedOptions().timeZone,
          consent: this.consents,
          ...this.options.context,
        };
        const who = { user_id: this.user || this.device, session_id: this.visit, device_id: this.device };
        const body = full({ ...who, ...ask, context: full(context) });
        const signal = AbortSignal.timeout(this.options.timeoutMs || 3000);
        const reply = await this.post("/v1/decide", body, { signal });
        if (!reply.ok) throw new Error("HTTP " + reply.status);
        const json = await reply.json();
        this.shownTo = typeof json.user_id === "string" ? json.user_id : body.user_id;
        const found = decisionsOf(json);
        this.tell("decided", { decisions: found });
        return found;
      } catch (error) {
        this.tell("decided", { decisions: [], error: String(error) });
        return [];
      }
    }

    /** Fill every `[data-handbill=placement]` of the page by one decision. */
    async start() {
      const slots = [...document.querySelectorAll("[data-handbill]")];
      const placements = slots.map((slot) => slot.dataset.handbill);
      if (!slots.length) return;
      for (const one of await this.decide({ placements: [...new Set(placements)].slice(0, 10) })) {
        const slot = slots.find((it) => [one.placement, one.placement_id].includes(it.dataset.handbill));
        if (slot) this.present(slot, one);
      }
    }

    /** @param {HTMLElement} slot */
    async show(slot, placement = slot.dataset.handbill, limit = 1) {
      const found = await this.decide({ placements: placement ? [placement] : undefined, limit });
      if (found.length) await this.present(slot, found[0]);
      return found.length ? found[0].banners.length : 0;
    }

    async present(slot, decision) {
      for (const banner of decision.banners) {
        if ((await this.one(slot, banner, decision.placement_id || null)) === "leave") return;
      }
    }

    /** One banner, until it is gone. @returns {Promise<How>} */
    one(slot, banner, placement_id) {
      this.open.get(slot)?.("leave");
      return new Promise((resolve) => {
        const showing = this.showing(banner, placement_id);
        const watch = new Stopwatch();
        let seen = false;
        let timer = 0;
        const look = () => {
          clearTimeout(timer);
          const left = banner.z_duration_sec * 1000 - watch.ms();
          const steady = watch.since === null ? 0 : performance.now() - watch.since;
          if (!showing.viewable && steady >= VIEWABLE_MS) {
            showing.viewable = true;
            this.tell("viewable", { showing }, slot);
          }
          if (left <= 0) return end("timer");
          // A timer may fire a moment early, so it only looks again.
          const next = showing.viewable ? left : Math.min(left, VIEWABLE_MS - steady);
          if (watch.since !== null) timer = setTimeout(look, Math.max(1, Math.ceil(next)));
        };
        const turn = () => {
          watch.run(seen && !document.hidden);
          look();
        };
        const end = (how) => {
          if (this.open.get(slot) !== end) return;
          this.open.delete(slot);
          clearTimeout(timer);
          eye?.disconnect();
          document.removeEventListener("visibilitychange", turn);
          const report = reportOf(watch.ms(), how, this.options.accidentalCloseMs);
          host.remove();
          if (begun) this.report("view", bodyOf.view(showing, report));
          this.tell("closed", { showing, how, report }, slot);
          resolve(how);
        };
        const href = this.href(banner, showing);
        const host = this.drawn(banner, { dismiss: () => end("dismiss"), href });
        let begun = false;
        const begin = () => {
          if (begun) return;
          begun = true;
          showing.at = Date.now();
          if (placement_id) this.report("impression", bodyOf.impression(showing));
          this.tell("shown", { showing }, slot);
        };
        const judge = (entries) => {
          const last = entries[entries.length - 1];
          if (last.isIntersecting && !document.hidden) begin();
          const now = last.intersectionRatio >= 0.5 || last.intersectionRect.height >= root.innerHeight / 2;
          if (now !== seen) {
            seen = now;
            turn();
          }
        };
        this.open.set(slot, end);
        slot.append(host);
        document.addEventListener("visibilitychange", turn);
        const eye = new IntersectionObserver(judge, { threshold: [0, 0.25, 0.5, 0.75, 1] });
        eye.observe(host);
      });
    }

    /** @returns {Showing} */
    showing(banner, placement_id) {
      return {
        id: newId(),
        banner,
        placement_id,
        user: this.shownTo || this.user || this.device,
        session: this.visit,
        device: this.device,
        at: Date.now(),
        page: bare(root.location.href),
        referrer: bare(document.referrer),
        viewable: false,
      };
    }

    href(banner, showing) {
      return banner.click_url ? this.at(`${banner.click_url}?c=clk_${showing.id}`) : null;
    }

    drawn(banner, close) {
      if (this.options.render) return this.options.render(banner, close);
      const make = (tag, set = {}, ...children) => {
        const made = Object.assign(document.createElement(tag), set);
        made.append(...children.filter(Boolean));
        return made;
      };
      const picture = web(banner.image_url, this.base);
      const image = picture && make("img", { src: picture, alt: "" });
      if (image) image.onerror = () => image.remove();
      const title = banner.title && make("strong", { textContent: banner.title });
      const words = make("span", {}, title, banner.description && make("p", { textContent: banner.description }));
      const link = make("a", close.href ? { href: close.href, rel: "noopener" } : {}, image, words);
      const cross = { type: "button", textContent: "×", ariaLabel: "Dismiss", onclick: close.dismiss };
      const named = { className: "card", part: "card", role: "region", ariaLabel: banner.title || "Promotion" };
      const card = make("div", named, link, make("button", cross));
      const host = make("div");
      const shadow = host.attachShadow({ mode: "open" });
      // A style element would not pass a strict content security policy.
      const sheet = new CSSStyleSheet();
      sheet.replaceSync(STYLE);
      shadow.adoptedStyleSheets = [sheet];
      shadow.append(card);
      return host;
    }

    /** @param {Showing} showing @param {string} destination */
    click(showing, destination) {
      const sent = this.report("click", bodyOf.click(showing, destination));
      this.beacon(); // the page is about to go
      return sent;
    }

    /** @param {string} event @param {object} [properties] @param {object} [person] `$set`, `$set_once`, `$unset` */
    track(event, properties = {}, person = undefined) {
      const context = {
        session_id: this.visit,
        url: bare(root.location.href),
        referrer: bare(document.referrer),
        language: navigator.language,
        timezone: Intl.DateTimeFormat().resolvedOptions().timeZone,
        screen_width: root.screen?.width,
        screen_height: root.screen?.height,
        lib: "handbill.js",
      };
      const moment = { id: newId(), user: this.user, device: this.device, at: Date.now(), context };
      return this.report("event", bodyOf.event(moment, event, properties, person));
    }

    page(properties = {}) {
      return this.track("$pageview", { title: document.title, ...properties });
    }

    /** From now on this is the user. @param {string} user @param {{token?: string, traits?: object}} [more] */
    identify(user, more = {}) {
      this.user = this.shownTo = user;
      this.token = more.token || null;
      this.flush();
      return this.track("$identify", {}, more.traits && { $set: more.traits });
    }

    /** Another name of the same person. @param {string} other */
    alias(other) {
      return this.track("$create_alias", { alias: other });
    }

    /** The user has left this device. */
    reset() {
      this.user = this.shownTo = this.token = null;
      this.forget();
    }

    forget() {
      this.local.drop("hb-device");
      this.session.drop("hb-session");
      this.memory = {};
    }

    /** What the visitor agrees to; taking it back forgets them. @param {string[]} list */
    consent(list) {
      this.consents = list;
      if (!this.quiet) return;
      for (const entry of this.queued()) this.local.drop(entry.key);
      this.forget();
    }

    /** Resolves to kept, queued or off; rejects when the server refuses. */
    report(kind, body) {
      if (this.quiet) return Promise.resolve("off");
      const at = Date.now();
      const key = this.prefix + at.toString(36) + newId();
      this.local.set(key, JSON.stringify({ kind, body, at }));
      const settled = new Promise((resolve, reject) => this.waiting.set(key, { resolve, reject }));
      settled.catch(() => {}); // nobody has to listen
      this.tell("report", { kind, body });
      this.flush();
      return settled;
    }

    /** What waits, oldest first. @returns {Entry[]} */
    queued() {
      const all = [];
      for (const key of this.local.keys().filter((it) => it.startsWith(this.prefix))) {
        try {
          all.push({ ...JSON.parse(this.local.get(key) || ""), key });
        } catch {
          this.local.drop(key);
        }
      }
      const found = fitting(all, Date.now());
      for (const entry of all) if (!found.includes(entry)) this.local.drop(entry.key);
      return found;
    }

    /** What waits, by kind. With a user's token another user's views must wait. */
    requests() {
      const by = { impression: [], click: [], view: [], event: [] };
      for (const entry of this.queued()) {
        const foreign = this.token && entry.kind === "view" && entry.body.user_id !== (this.shownTo || this.user);
        if (by[entry.kind] && !foreign) by[entry.kind].push(entry);
      }
      const made = [];
      for (const [kind, all] of Object.entries(by)) {
        for (let i = 0; i < all.length; i += BATCH_MAX) made.push(this.request(kind, all.slice(i, i + BATCH_MAX)));
      }
      return made;
    }

    request(kind, entries) {
      const events = entries.map((entry) => entry.body);
      if (kind === "event") {
        const body = { api_key: this.options.writeKey, sent_at: new Date().toISOString(), events };
        return { kind, entries, path: EVENTS, body };
      }
      const one = events.length === 1;
      return { kind, entries, path: PATHS[kind] + (one ? "" : "/batch"), body: one ? events[0] : { events } };
    }

    async flush() {
      if (this.busy || this.leaving || navigator.onLine === false) return;
      this.busy = true;
      clearTimeout(this.timer);
      let wait = 0;
      try {
        for (let sent = true; sent && !wait; ) {
          sent = false;
          for (const request of this.requests()) {
            wait = Math.max(wait, await this.send(request));
            sent = true;
          }
        }
      } finally {
        this.busy = false;
      }
      this.tries = wait ? this.tries + 1 : 0;
      if (wait && !this.stopped) this.timer = setTimeout(() => this.flush(), wait * (1 + Math.random() / 2));
    }

    async send({ kind, entries, path, body }) {
      const reply = await this.post(path, body).catch(() => null);
      const answer = await reply?.json().catch(() => null);
      const status = reply ? reply.status : 0;
      const fate = fateOf(status, reply && reply.headers.get("retry-after"), this.tries);
      const { by, all } = refusedOf(status, answer);
      entries.forEach((entry, index) => {
        if (!fate.keep) this.local.drop(entry.key);
        this.settle(entry, fate.keep, by.get(index) || all);
      });
      this.tell("sent", { kind, status, count: entries.length });
      return fate.waitMs;
    }

    settle(entry, kept, code) {
      const waiter = this.waiting.get(entry.key);
      this.waiting.delete(entry.key);
      if (!waiter) return;
      if (kept) waiter.resolve("queued");
      else if (!code) waiter.resolve("kept");
      else waiter.reject(refusal(code));
    }

    /** The page may go: hand all to the browser. It stays queued, for a beacon has no answer. */
    beacon() {
      if (this.quiet || navigator.onLine === false) return;
      for (const { kind, path, body } of this.requests()) {
        const url = `${this.at(path)}?write_key=${encodeURIComponent(this.options.writeKey)}`;
        const data = new Blob([JSON.stringify(body)], { type: "text/plain" });
        const handed = !(this.token && kind === "view") && navigator.sendBeacon?.(url, data);
        if (!handed) this.post(path, body).catch(() => {});
      }
    }

    leave() {
      this.leaving = true; // what is reported now goes by beacon
      for (const end of [...this.open.values()]) end("leave");
      this.beacon();
      this.leaving = false;
    }

    /** For pages that never reload. */
    stop() {
      this.leave();
      this.stopped = true;
      clearTimeout(this.timer);
      for (const [target, name, work] of this.listeners) target.removeEventListener(name, work);
    }

    at(path) {
      return new URL(path, this.base).href;
    }

    post(path, body, more = { keepalive: true }) {
      const headers = { "content-type": "application/json", "x-write-key": this.options.writeKey };
      if (this.token) headers.authorization = "Bearer " + this.token;
      return fetch(this.at(path), { method: "POST", headers, body: JSON.stringify(body), ...more });
    }

    tell(name, detail, target = document) {
      target.dispatchEvent(new CustomEvent("handbill:" + name, { detail, bubbles: true }));
    }
  }

  function refusal(code) {
    return Object.assign(new Error(`Not taken (${code}), not sent again.`), { code });
  }

  /** An address that is safe in a page, or null. */
  function web(address, base) {
    try {
      const url = new URL(address || "none:", base);
      return /^https?:$/.test(url.protocol) ? url.href : null;
    } catch {
      return null;
    }
  }

  /** Without its query, which may name people. */
  function bare(address) {
    return address.split(/[?#]/)[0].slice(0, 2000) || null;
  }

  Handbill.rules = { reportOf, fateOf, fitting, decisionsOf, bodyOf, refusedOf, HORIZON_MS, QUEUE_MAX, BATCH_MAX };
  if (typeof module === "object") module.exports = Handbill;
  else root.Handbill = Handbill;

  const script = typeof document === "object" && document.currentScript;
  if (script && script.dataset.writeKey) {
    const { url, writeKey, user, token, needsConsent, pageviews } = script.dataset;
    root.handbill = new Handbill({ url: url || script.src, writeKey, user, token, needsConsent });
    if (pageviews !== undefined) root.handbill.page();
    if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => root.handbill.start());
    else root.handbill.start();
  }
})(typeof self === "object" ? self : globalThis);
