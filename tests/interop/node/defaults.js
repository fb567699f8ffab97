// posthog-node with nothing configured but the address and a key for flags: node defaults.js URL KEY
// Prints what it got for a flag, and every error that it reports.
const { PostHog } = require("posthog-node");

const [url, key] = process.argv.slice(2);

const main = async () => {
  const errors = [];
  const found = [];
  for (const options of [{}, { personalApiKey: "phx_any" }]) {
    const client = new PostHog(key, { host: url, ...options });
    client.on("error", (error) => errors.push(String(error)));
    found.push((await client.getFeatureFlag("new-cart", "ada")) ?? null);
    found.push(await client.getAllFlags("ada"));
    client.capture({ distinctId: "ada", event: "order placed", sendFeatureFlags: true });
    await client.shutdown();
  }
  console.log(JSON.stringify({ found, errors }));
};

main();
