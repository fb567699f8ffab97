// What some people do, through an unmodified client: node order.js CLIENT URL KEY PEOPLE (names with commas between)
// Each has `plan` set to a and then to b, and looks and then buys. posthog-node also sets `first` once to a and to b.
"use strict";

async function posthog(host, key, people) {
  const { PostHog } = require("posthog-node");
  const client = new PostHog(key, { host });
  client.capture({ distinctId: people[0], event: "arrive" }); // one more: batches are even, so they split pairs
  for (const distinctId of people) {
    for (const value of ["a", "b"]) {
      const properties = { $set: { plan: value }, $set_once: { first: value } };
      client.capture({ distinctId, event: "$set", properties });
    }
    client.capture({ distinctId, event: "look" });
    client.capture({ distinctId, event: "buy" });
  }
  await client.shutdown();
}

async function segment(host, writeKey, people) {
  const { Analytics } = require("@segment/analytics-node");
  const client = new Analytics({ host, writeKey });
  client.on("error", (error) => {
    console.error(error);
    process.exitCode = 1;
  });
  client.track({ userId: people[0], event: "arrive" }); // an odd number, as in the other clients
  for (const call of calls(client, people)) call();
  await client.closeAndFlush();
}

async function rudder(dataPlaneUrl, key, people) {
  const Analytics = require("@rudderstack/rudder-sdk-node");
  const client = new Analytics(key, { dataPlaneUrl, flushInterval: 100, logLevel: "error" });
  const sent = (call) => new Promise((done, failed) => call((error) => (error ? failed(error) : done())));
  await Promise.all(calls(client, people).map(sent));
}

function calls(client, people) {
  const made = [];
  for (const userId of people) {
    for (const plan of ["a", "b"]) made.push((done) => client.identify({ userId, traits: { plan } }, done));
    for (const event of ["look", "buy"]) made.push((done) => client.track({ userId, event }, done));
  }
  return made;
}

const [, , client, url, key, people] = process.argv;
({ posthog, segment, rudder })[client](url, key, people.split(","));
