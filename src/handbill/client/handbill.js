/* Shows banners, reports what was seen, sends a page's own events. See docs/clients.md. */
(function (root) {
  "use strict";

  /**
   * @typedef {{banner_id: string, z_duration_sec: number, campaign_id?: string, variant?: string, title?: string,
   *   description?: string, image_url?: string, asset_url?: string, click_url?: string, token?: string}} Banner
   * @typedef {{placement?: string, placement_id?: string, banners: Banner[]}} Decision
   * @typedef {"timer"|"dismiss"|"leave"|"empty"} How
   * @typedef {{id: string, banner: Banner, placement_id: string|null, user: string, at: number}} Showing
   * @typedef {{kind: string, body: object, at: number, key: string}} Entry
   */

  const DAY = 86400000;
  // A day less than the server remembers ids.
  const HORIZON_MS = 34 * DAY;
  const QUEUE_MAX = 200;
  const BATCH_MAX = 50;
  const BATCH_BYTES = 500000;
  const PLACEMENTS_MAX = 10;
  const ACCIDENTAL_MS = 500;
  const VIEWABLE_MS = 1000;
  const IDLE_MS = 2000;
  const PATHS = {
    impression: "/api/banners/events/impression",
    click: "/api/banners/events/click",
    view: "/views",
    event: "/v1/events",
  };

  /** @param {How} how */
  function reportOf(visibleMs, how, accidentalMs = ACCIDENTAL_MS) {
    const ms = Math.max(0, Math.min(Math.floor(visibleMs), DAY));
    return { view_duration_ms: ms, dismissed: how === "dismiss" && ms >= accidentalMs };
  }

  /** Send them again? Status 0: no answer. Not understood: not Handbill's answer. */
  function fateOf(status, retryAfter, tries, count = 1, understood = true) {
    // 401 is kept: a fresh token may come.
    const again = status === 0 || status >= 500 || [401, 408, 425, 429].includes(status);
    if (status === 413 && count > 1) return { keep: true, waitMs: 0, batchMax: count >> 1 };
    const keep = again || (!understood && status !== 413);
    if (!keep) return { keep, waitMs: 0 };
    const told = /^\d{1,9}$/.test(retryAfter || "") ? Number(retryAfter) * 1000 : 0;
    return { keep, waitMs: told ? Math.min(told, 3600000) : Math.min(1000 * 2 ** tries, 300000) };
  }

  /** The newest that are not too old. @param {Entry[]} entries */
  function fitting(entries, now, max = QUEUE_MAX) {
    const fresh = entries.filter(({ at }) => at > now - HORIZON_MS && at < now + DAY);
    return fresh.sort((a, b) => a.at - b.at || (a.key > b.key) - (a.key < b.key)).slice(-max);
  }

  /** None of too many or too large; an entry that is too large goes alone. */
  function batchesOf(entries, size, max = BATCH_MAX) {
    const made = [];
    let total = Infinity;
    for (const entry of entries) {
      total += size(entry);
      if (total > BATCH_BYTES || made[made.length - 1].length >= max) {
        made.push([]);
        total = size(entry);
      }
      made[made.length - 1].push(entry);
    }
    return made;
  }

  /** The placements of each request for a decision. */
  function partsOf(names) {
    const parts = [names.slice(0, PLACEMENTS_MAX)];
    for (let at = PLACEMENTS_MAX; at < names.length; at += PLACEMENTS_MAX) {
      parts.push(names.slice(at, at + PLACEMENTS_MAX));
    }
    return parts;
  }

  const waitOf = (openMs, openAfterMs) => Math.max(0, openAfterMs - openMs);

  /** Anything unexpected is left out. @returns {Decision[]} */
  function decisionsOf(reply) {
    return (Array.isArray(reply?.decisions) ? reply.decisions : [])
      .filter((one) => Array.isArray(one?.banners))
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
      campaignPublicId: s.banner.campaign_id,
      variant: s.banner.variant,
      token: s.banner.token,
      correlationId: prefix + s.id,
      userId: s.user,
      sessionId: s.session,
      pageUrl: s.page,
      occurredAt: new Date(s.at).toISOString(),
    };
  }

  const bodyOf = {
    impression: (s) => full({ ...tracked(s, "imp_"), referrerUrl: s.referrer }),
    click: (s, destinationUrl, at) =>
      full({ ...tracked(s, "clk_"), occurredAt: new Date(at).toISOString(), destinationUrl }),
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

  /** Is this Handbill's answer to so many reports? */
  function understoodOf(status, answer, count) {
    const it = Object(answer);
    const text = (value) => typeof value === "string";
    const taken = text(it.message) || Number.isInteger(it.accepted);
    const sure = status < 300 ? taken : text(it.code) || Array.isArray(it.dropped);
    const placed = (index) => Number.isInteger(index) && index >= 0 && index < count;
    const known = ({ index, code, reason }) => placed(index) && text(code || reason);
    const { data, dropped } = it;
    const rejected = data && typeof data === "object" && !Array.isArray(data) ? data.rejected : data;
    const fine = (list) => (list ?? null) === null || (Array.isArray(list) && list.every((one) => known(Object(one))));
    return sure && fine(rejected) && fine(dropped);
  }

  function refusedOf(status, answer) {
    const refused = [...(answer?.data?.rejected || []), ...(answer?.dropped || [])];
    const by = new Map(refused.map((it) => [it.index, it.code || it.reason]));
    const whole = status >= 300 && !by.size ? answer?.code || "HTTP_" + status : undefined;
    return { by, all: answer?.quota_limited ? "QUOTA" : whole };
  }

  function full(body) {
    return Object.fromEntries(Object.entries(body).filter(([, value]) => (value ?? null) !== null));
  }

  function random() {
    return Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
  }

  let lastMs = 0;
  let count = 0;
  /** A UUIDv7 that is larger than all before: reports keep their order, however often they are sent. */
  function newId() {
    const now = Date.now();
    if (now > lastMs) [lastMs, count] = [now, 0];
    else if (++count > 4095) [lastMs, count] = [lastMs + 1, 0];
    const ms = lastMs.toString(16).padStart(12, "0");
    const counted = "7" + count.toString(16).padStart(3, "0");
    return [ms.slice(0, 8), ms.slice(8), counted, "8" + random().slice(29), random().slice(20)].join("-");
  }

  /** A browser may refuse its storage. */
  function storage(name) {
    const memory = new Map();
    const attempt = (work, otherwise = () => null) => {
      try {
        return work(root[name]);
      } catch {
        return otherwise();
      }
    };
    return {
      get: (key) => memory.get(key) ?? attempt((s) => s.getItem(key)),
      set: (key, value) => attempt((s) => s.setItem(key, value), () => memory.set(key, value)),
      drop: (key) => (memory.delete(key), attempt((s) => s.removeItem(key))),
      keys: () => [...memory.keys(), ...(attempt(Object.keys) || [])],
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

  const STYLE = `.card{position:relative;padding:1rem 3rem 1rem 1rem;
font:inherit;color:var(--handbill-ink,#1d1d1f);background:var(--handbill-paper,#fff);
border:1px solid var(--handbill-line,#d9d9de);border-radius:var(--handbill-radius,12px)}
a{display:flex;flex-wrap:wrap;gap:1rem;align-items:center;color:inherit;text-decoration:none;outline:0}
a::before{content:"";position:absolute;inset:0;border-radius:inherit}a:focus-visible::before{outline:2px solid}
a:hover b{text-decoration:underline}img{order:-1;max-width:85%;max-height:60vh;border-radius:8px}
span{flex:1;min-width:40%}span~img{max-width:40%;max-height:9rem}
strong{display:block;font-size:1.15em}p{margin:.25em 0 0}b{margin-left:auto}
button{position:absolute;top:.5rem;right:.5rem;width:2rem;height:2rem;border:0;border-radius:50%;cursor:pointer;
font-size:1.2rem;color:inherit;background:none}button:hover{background:#0001}`;

  class Handbill {
    /** @param {{writeKey: string, [option: string]: any}} options */
    constructor(options) {
      this.options = options;
      this.base = new URL(options.url || "/", root.location?.href).href;
      this.user = options.user || null;
      this.token = options.token || null;
      this.consents = options.consent || [];
      this.local = storage("localStorage");
      this.session = storage("sessionStorage");
      this.prefix = `hb:${options.writeKey.slice(-8)}:`;
      this.memory = {};
      this.open = new Map();
      this.waiting = new Map();
      this.tries = this.deciding = this.misses = 0;
      this.max = BATCH_MAX;
      // Reports that something in between refuses: they go alone, behind all others.
      this.alone = new Set();
      this.listeners = [
        [root, "online", () => this.flush()],
        [root, "pagehide", () => this.leave()],
        [document, "visibilitychange", () => (document.hidden ? this.beacon() : this.flush())],
      ];
      for (const [target, name, work] of this.listeners) target.addEventListener(name, work);
      // Of an earlier page: goes after the first decision.
      if (this.queued().length) this.held = setTimeout(() => this.release(), IDLE_MS);
    }

    /** Must nobody be followed here? */
    get quiet() {
      const told = navigator.doNotTrack === "1" || navigator.globalPrivacyControl;
      const needed = this.options.needsConsent;
      return (told && !this.options.ignoreDoNotTrack) || (needed && !this.consents.includes(needed));
    }

    kept(name, store) {
      const id = this.memory[name] || (!this.quiet && store.get("hb-" + name)) || random();
      if (!this.quiet) store.set("hb-" + name, id);
      return (this.memory[name] = id);
    }

    get device() {
      return this.kept("device", this.local);
    }

    get visit() {
      return this.kept("session", this.session);
    }

    /** Any number of placements. Whatever goes wrong, the list is empty.
     * @param {{placements?: string[], limit?: number}} [ask] @returns {Promise<Decision[]>} */
    async decide(ask = {}) {
      const decisions = [];
      let error;
      this.deciding++;
      const early = waitOf(performance.now(), this.options.openAfterMs || 0);
      if (early) await new Promise((resolve) => setTimeout(resolve, early));
      try {
        if (this.stopped) throw new Error("stopped");
        const context = {
          url: bare(root.location.href),
          referrer: bare(document.referrer),
          language: navigator.language,
          time_zone: Intl.DateTimeFormat().resolvedOptions().timeZone,
          consent: this.consents,
          ...this.options.context,
        };
        const who = { user_id: this.user || this.device, session_id: this.visit, device_id: this.device };
        const signal = AbortSignal.timeout(this.options.timeoutMs || 3000);
        for (const some of partsOf(ask.placements || [])) {
          const placements = some.length ? some : null;
          const body = full({ ...who, ...ask, placements, context: full(context) });
          const reply = await this.post("/v1/decide", body, { signal, keepalive: false });
          if (!reply.ok) throw new Error("HTTP " + reply.status);
          const json = await reply.json();
          this.shownTo = typeof json.user_id === "string" ? json.user_id : body.user_id;
          decisions.push(...decisionsOf(json).map((one) => ({ ...one, user_id: this.shownTo })));
        }
      } catch (problem) {
        error = String(problem);
      }
      this.tell("decided", { decisions, error });
      this.deciding--;
      this.release();
      return decisions;
    }

    release() {
      this.held = clearTimeout(this.held);
      if (!this.timer) this.flush();
    }

    /** Fill every slot. */
    async start() {
      const slots = [...document.querySelectorAll("[data-handbill]")];
      const names = slots.map((slot) => slot.dataset.handbill);
      if (!slots.length) return;
      const many = slots.length > PLACEMENTS_MAX;
      const places = many ? [...new Set(names)] : names;
      const count = (name) => names.filter((it) => it === name).length;
      const limit = many ? Math.min(20, Math.max(...places.map(count))) : 1;
      const decisions = await this.decide({ placements: places, limit });
      const found = decisions.map((one) => ({ ...one, banners: [...one.banners] }));
      slots.forEach((slot, at) => {
        const one = found[many ? places.indexOf(names[at]) : at];
        if (one) this.present(slot, { ...one, banners: one.banners.splice(0, 1) });
      });
    }

    /** @param {HTMLElement} slot */
    async show(slot, placement = slot.dataset.handbill, limit = 1) {
      const [first] = await this.decide({ placements: placement ? [placement] : undefined, limit });
      if (first) await this.present(slot, first);
      return first ? first.banners.length : 0;
    }

    async present(slot, decision) {
      for (const banner of decision.banners) {
        if ((await this.one(slot, banner, decision)) === "leave") return;
      }
    }

    /** @returns {Promise<How>} once it is gone */
    one(slot, banner, decision) {
      this.open.get(slot)?.("leave");
      return new Promise((resolve, reject) => {
        const showing = this.showing(banner, decision);
        const watch = new Stopwatch();
        let seen = false;
        let begun, timer, host;
        const look = () => {
          clearTimeout(timer);
          const left = banner.z_duration_sec * 1000 - watch.ms();
          const steady = watch.since === null ? 0 : performance.now() - watch.since;
          if (!showing.viewable && steady >= VIEWABLE_MS) {
            showing.viewable = true;
            this.tell("viewable", { showing }, slot);
          }
          if (left <= 0) return end("timer");
          // A timer may fire early.
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
          eye.disconnect();
          document.removeEventListener("visibilitychange", turn);
          host?.remove();
          if (how === "empty") this.tell("empty", { showing }, slot);
          else if (host) {
            const report = reportOf(watch.ms(), how, this.options.accidentalCloseMs);
            if (begun) this.report("view", bodyOf.view(showing, report));
            this.tell("closed", { showing, how, report }, slot);
          }
          resolve(how);
        };
        const judge = (entries) => {
          const last = entries[entries.length - 1];
          if (last.isIntersecting && !document.hidden && !begun) {
            begun = true;
            showing.at = Date.now();
            if (showing.placement_id) this.report("impression", bodyOf.impression(showing));
            this.tell("shown", { showing }, slot);
          }
          const now = last.intersectionRatio >= 0.5 || last.intersectionRect.height >= root.innerHeight / 2;
          if (now !== seen) {
            seen = now;
            turn();
          }
        };
        const eye = new IntersectionObserver(judge, { threshold: [0, 0.25, 0.5, 0.75, 1] });
        const place = (drawn) => {
          if (this.open.get(slot) !== end) return;
          if (!drawn) return end("empty");
          host = drawn;
          slot.append(host);
          document.addEventListener("visibilitychange", turn);
          eye.observe(host);
        };
        this.open.set(slot, end);
        const close = { dismiss: () => end("dismiss"), href: this.href(banner, showing) };
        this.drawn(banner, close).then(place).catch(reject);
      });
    }

    /** @returns {Showing} */
    showing(banner, { placement_id, user_id }) {
      return {
        id: newId(),
        banner,
        placement_id,
        user: user_id || this.user || this.device,
        session: this.visit,
        device: this.device,
        at: Date.now(),
        page: bare(root.location.href),
        referrer: bare(document.referrer),
        viewable: false,
      };
    }

    href(banner, showing) {
      const query = `?c=clk_${showing.id}${this.quiet ? "&anonymous=1" : ""}`;
      return banner.click_url ? this.at(banner.click_url + query) : null;
    }

    /** Null: there is nothing to see. @returns {Promise<Element|null>} */
    async drawn(banner, close) {
      if (this.options.render) return this.options.render(banner, close);
      const make = (tag, set, ...children) => {
        const made = Object.assign(document.createElement(tag), set);
        made.append(...children.filter(Boolean));
        return made;
      };
      const { title, description, image_url, asset_url } = banner;
      const sources = [image_url, asset_url].map((it) => web(it, this.base)).filter(Boolean);
      const image = make("img", { alt: "" });
      const words = make("span", {}, title && make("strong", {}, title), description && make("p", {}, description));
      const text = words.innerText.trim();
      const cta = close.href && make("b", { part: "cta", ariaHidden: true }, "→");
      const link = make("a", close.href ? { href: close.href, rel: "noopener" } : {}, text && words, image, cta);
      const ariaLabel = title || "Promotion";
      if (!text) link.ariaLabel = ariaLabel;
      const loaded = new Promise((resolve) => {
        const next = () => (sources.length ? (image.src = sources.shift()) : resolve(image.remove()));
        image.onload = () => resolve(true);
        image.onerror = next;
        next();
      });
      if (!text && !(await loaded)) return null;
      const cross = make("button", { type: "button", ariaLabel: "Dismiss", onclick: close.dismiss }, "×");
      const card = make("div", { className: "card", part: "card", role: "region", ariaLabel }, link, cross);
      const host = make("div");
      const shadow = host.attachShadow({ mode: "open" });
      // A strict content security policy forbids style elements.
      const sheet = new CSSStyleSheet();
      sheet.replaceSync(STYLE);
      shadow.adoptedStyleSheets = [sheet];
      shadow.append(card);
      return host;
    }

    /** @param {Showing} showing */
    click(showing, destination) {
      const sent = this.report("click", bodyOf.click(showing, destination, Date.now()));
      this.beacon();
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

    /** @param {string} user @param {{token?: string, traits?: object}} [more] */
    identify(user, more = {}) {
      this.user = this.shownTo = user;
      this.token = more.token || null;
      return this.track("$identify", {}, more.traits && { $set: more.traits });
    }

    alias(other) {
      return this.track("$create_alias", { alias: other });
    }

    reset() {
      this.user = this.shownTo = this.token = null;
      this.forget();
    }

    forget() {
      this.local.drop("hb-device");
      this.session.drop("hb-session");
      this.memory = {};
    }

    /** Taking it back forgets the visitor. @param {string[]} list */
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
      const key = this.prefix + newId();
      this.local.set(key, JSON.stringify({ kind, body, at }));
      const settled = new Promise((resolve, reject) => this.waiting.set(key, { resolve, reject }));
      settled.catch(() => {});
      this.tell("report", { kind, body });
      // The server asked for patience, or is away.
      if (this.timer) this.settle({ key }, true);
      else this.flush();
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
      const fit = fitting(all, Date.now());
      for (const entry of all) if (!fit.includes(entry)) this.local.drop(entry.key);
      return fit;
    }

    /** With a user's token another user's views must wait. */
    requests() {
      const by = { impression: [], click: [], view: [], event: [] };
      const alone = [];
      for (const entry of this.queued()) {
        const foreign = this.token && entry.kind === "view" && entry.body.user_id !== (this.shownTo || this.user);
        if (by[entry.kind] && !foreign) (this.alone.has(entry.key) ? alone : by[entry.kind]).push(entry);
      }
      const size = ({ body }) => JSON.stringify(body).length;
      const batches = Object.values(by).flatMap((all) => batchesOf(all, size, this.max));
      return [...batches, ...alone.map((one) => [one])].map((some) => this.request(some[0].kind, some));
    }

    request(kind, entries) {
      const events = entries.map((entry) => entry.body);
      const made = { kind, entries, path: PATHS[kind], body: { events } };
      if (kind === "event") made.body.sent_at = new Date().toISOString();
      else if (events.length > 1) made.path += "/batch";
      else [made.body] = events;
      return made;
    }

    /** Decisions go first. */
    async flush() {
      const blocked = () => this.deciding || this.held || this.leaving || navigator.onLine === false;
      this.timer = clearTimeout(this.timer);
      if (this.busy || blocked()) return;
      this.busy = true;
      let wait = (this.misses = 0);
      try {
        for (let sent = true; sent && !wait; ) {
          sent = false;
          for (const request of this.requests()) {
            if (blocked() || this.misses > 2) break;
            wait = Math.max(wait, await this.send(request));
            sent = true;
          }
        }
      } finally {
        this.busy = false;
      }
      this.tries = wait ? this.tries + 1 : 0;
      if (!wait || this.stopped) return;
      this.timer = setTimeout(() => this.flush(), wait * (1 + Math.random() / 2));
      for (const key of this.waiting.keys()) this.settle({ key }, true);
    }

    async send({ kind, entries, path, body }) {
      const reply = await this.post(path, body).catch(() => null);
      const answer = await reply?.json().catch(() => null);
      const status = reply?.status || 0;
      const understood = understoodOf(status, answer, entries.length);
      const fate = fateOf(status, reply?.headers.get("retry-after"), this.tries, entries.length, understood);
      this.max = fate.batchMax || BATCH_MAX;
      this.misses = understood || fate.batchMax ? 0 : this.misses + 1;
      const refused = fate.waitMs && !understood && status >= 400 && status < 500;
      for (const { key } of entries) this.alone[refused ? "add" : "delete"](key);
      const { by, all } = refusedOf(status, answer);
      entries.forEach((entry, index) => {
        if (!fate.keep) this.local.drop(entry.key);
        if (!fate.batchMax) this.settle(entry, fate.keep, by.get(index) || all);
      });
      this.tell("sent", { kind, status, count: entries.length });
      return fate.waitMs;
    }

    settle(entry, kept, code) {
      const waiter = this.waiting.get(entry.key);
      this.waiting.delete(entry.key);
      if (kept || !code) waiter?.resolve(kept ? "queued" : "kept");
      else waiter?.reject(Object.assign(new Error("Refused: " + code), { code }));
    }

    /** All stays queued: a beacon has no answer. */
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
      this.leaving = true;
      for (const end of [...this.open.values()]) end("leave");
      this.beacon();
      this.leaving = false;
    }

    /** For pages that never reload. */
    stop() {
      this.leave();
      this.stopped = true;
      clearTimeout(this.timer);
      clearTimeout(this.held);
      for (const [target, name, work] of this.listeners) target.removeEventListener(name, work);
    }

    at(path) {
      return new URL(path, this.base).href;
    }

    post(path, data, more) {
      const body = JSON.stringify(data);
      const headers = { "content-type": "application/json", "x-write-key": this.options.writeKey };
      if (this.token) headers.authorization = "Bearer " + this.token;
      // Browsers keep no more than 64 KiB alive.
      return fetch(this.at(path), { method: "POST", headers, body, keepalive: body.length < 2e4, ...more });
    }

    tell(name, detail, target = document) {
      target.dispatchEvent(new CustomEvent("handbill:" + name, { detail, bubbles: true }));
    }
  }

  /** A safe address, or null. */
  function web(address, base) {
    try {
      const url = new URL(address || "none:", base);
      return /^https?:$/.test(url.protocol) ? url.href : null;
    } catch {
      return null;
    }
  }

  /** A query may name people. */
  function bare(address) {
    return address.split(/[?#]/)[0].slice(0, 2000) || null;
  }

  Handbill.rules = { reportOf, fateOf, fitting, decisionsOf, bodyOf, refusedOf, understoodOf };
  Object.assign(Handbill.rules, { batchesOf, partsOf, waitOf, newId, HORIZON_MS, BATCH_MAX, BATCH_BYTES });
  if (typeof module === "object") module.exports = Handbill;
  else root.Handbill = Handbill;

  const script = typeof document === "object" && document.currentScript;
  if (script?.dataset.writeKey) {
    const { url, writeKey, user, token, needsConsent, openAfterMs, pageviews } = script.dataset;
    root.handbill = new Handbill({ url: url || script.src, writeKey, user, token, needsConsent, openAfterMs });
    if (pageviews !== undefined) root.handbill.page();
    if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => root.handbill.start());
    else root.handbill.start();
  }
})(typeof self === "object" ? self : globalThis);
