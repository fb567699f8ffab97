// What some people do, through an unmodified client: node order.js CLIENT URL KEY PEOPLE (names with commas between)
// Each has `plan` set to a and then to b, and looks and then buys. posthog-node also sets `first` once to a and to b.
"use strict";

// Five people at a time, each five in a millisecond of their own: no client can know the order of more calls than fit
// into one request, if they are all of one millisecond.
async function bursts(people, one) {
  for (let start = 0; start < people.length; start += 5) {
    people.slice(start, start + 5).forEach(one);
    for (const now = Date.now(); Date.now() === now; ) await new Promise(setImmediate);
  }
}

async function posthog(host, key, people) {
  const { PostHog } = require("posthog-node");
  const client = new PostHog(key, { host });
  client.capture({ distinctId: people[0], event: "arrive" }); // one more: batches are even, so they split pairs
  await bursts(people, (distinctId) => {
    for (const value of ["a", "b"]) {
      const properties = { $set: { plan: value }, $set_once: { first: value } };
      client.capture({ distinctId, event: "$set", properties });
    }
    client.capture({ distinctId, event: "look" });
    client.capture({ distinctId, event: "buy" });
  });
  await client.shutdown();
}

async function segment(host, writeKey, people) {
  const { Analytics } = require("@segment/analytics-node");
  const client = new Analytics({ host, writeKey });
  client.on("error", (error) => {
    console.error(error);
    process.exitCode = 1;
  });
  await does(client, people);
  await client.closeAndFlush();
}

async function rudder(dataPlaneUrl, key, people) {
  const Analytics = require("@rudderstack/rudder-sdk-node");
  const client = new Analytics(key, { dataPlaneUrl, flushInterval: 100, logLevel: "error" });
  await Promise.all(await does(client, people));
}

// What a call of RudderStack's client came to; Segment's tells it by its own event, and resolves nothing here.
async function does(client, people) {
  const sent = [];
  const call = (name, message) =>
    sent.push(new Promise((done, failed) => client[name](message, (error) => (error ? failed(error) : done()))));
  await bursts(people, (userId) => {
    for (const plan of ["a", "b"]) call("identify", { userId, traits: { plan } });
    for (const event of ["look", "buy"]) call("track", { userId, event });
  });
  return sent;
}

const [, , client, url, key, people] = process.argv;
({ posthog, segment, rudder })[client](url, key, people.split(","));
