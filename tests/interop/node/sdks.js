// Sends the same few events through one of the unmodified clients, then ends: node sdks.js posthog|segment URL KEY
"use strict";

const AT = new Date(Date.now() - 2 * 3600 * 1000);

async function posthog(host, key) {
  const { PostHog } = require("posthog-node");
  const client = new PostHog(key, { host, flushAt: 20, flushInterval: 100, disableGeoip: true });
  const properties = { total: 59.9, items: [1, { sku: "ä" }], $session_id: "s-1", $set: { plan: "pro" } };
  client.capture({ distinctId: "ada", event: "order placed", properties, timestamp: AT, groups: { company: "tea" } });
  client.identify({ distinctId: "ada", properties: { city: "Graz" } });
  client.alias({ distinctId: "ada", alias: "anon-1" });
  client.groupIdentify({ groupType: "company", groupKey: "tea", properties: { size: 3 } });
  await client.shutdown();
}

async function segment(host, writeKey) {
  const { Analytics } = require("@segment/analytics-node");
  const client = new Analytics({ host, writeKey, flushAt: 20, flushInterval: 100 });
  client.on("error", (error) => {
    console.error(error);
    process.exitCode = 1;
  });
  const context = { ip: "203.0.113.9", page: { url: "https://shop.example/cart" }, locale: "de-AT" };
  const properties = { total: 59.9, items: [1, { sku: "ä" }] };
  client.track({ userId: "ada", event: "Order Placed", properties, context, timestamp: AT });
  client.identify({ userId: "ada", anonymousId: "anon-1", traits: { plan: "pro" } });
  client.page({ userId: "ada", category: "Shop", name: "Cart", properties: { path: "/cart" } });
  client.group({ userId: "ada", groupId: "tea", traits: { size: 3 } });
  client.alias({ userId: "ada", previousId: "anon-2" });
  await client.closeAndFlush();
}

const [, , library, url, key] = process.argv;
({ posthog, segment })[library](url, key);
