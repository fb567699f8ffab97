// No-op jobs with Node's own worker. Usage: node bench.js LIBRARY REDIS_URL QUEUE COUNT CONCURRENCY; prints jobs a second.
"use strict";
const [library, url, name, count, concurrency] = process.argv.slice(2);
const { Worker } = require(library);
const at = new URL(url);
const connection = {
  host: at.hostname,
  port: Number(at.port),
  password: decodeURIComponent(at.password) || undefined,
  maxRetriesPerRequest: null,
};
let done = 0;
const worker = new Worker(name, async () => 1, {
  connection,
  concurrency: Number(concurrency),
  autorun: false,
  metrics: { maxDataPoints: 1440 },
});
worker.on("completed", async () => {
  done += 1;
  if (done !== Number(count)) return;
  const seconds = Number(process.hrtime.bigint() - began) / 1e9;
  await worker.close();
  console.log(done / seconds);
  process.exit(0);
});
let began;
worker.waitUntilReady().then(() => {
  began = process.hrtime.bigint();
  worker.run();
});
