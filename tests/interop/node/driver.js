// A Node program driven line by line: {"n", "verb", ...arguments} in, {"n", "ok"} or {"n", "error"} out.
// Usage: node driver.js bullmq5|bullmq6 REDIS_URL
"use strict";
const readline = require("node:readline");
const [library, url] = process.argv.slice(2);
const bullmq = require(library);
const at = new URL(url);
const connection = {
  host: at.hostname,
  port: Number(at.port),
  password: decodeURIComponent(at.password) || undefined,
  maxRetriesPerRequest: null,
};

// Bull Board asks for "bullmq" by its plain name: it gets the library under test.
const Module = require("node:module");
const find = Module._resolveFilename;
Module._resolveFilename = (name, ...rest) => find.call(Module, name === "bullmq" ? library : name, ...rest);

const queues = new Map();
const events = new Map();
const workers = [];
const closers = [];

function queue(name) {
  if (!queues.has(name)) queues.set(name, new bullmq.Queue(name, { connection }));
  return queues.get(name);
}

async function eventsOf(name) {
  if (!events.has(name)) events.set(name, new bullmq.QueueEvents(name, { connection }));
  await events.get(name).waitUntilReady();
  return events.get(name);
}

async function plain(job) {
  return job && { ...job.toJSON(), state: await job.getState() };
}

const verbs = {
  add: async ({ queue: q, name, data, opts }) => plain(await queue(q).add(name, data, opts)),
  addBulk: async ({ queue: q, jobs }) => (await queue(q).addBulk(jobs)).map((job) => job.id),
  job: async ({ queue: q, id }) => {
    // The state first: what is read after it is at least as new.
    const seen = await queue(q).getJob(id);
    const state = seen && (await seen.getState());
    const job = await queue(q).getJob(id);
    return job && { ...job.toJSON(), state };
  },
  logs: async ({ queue: q, id }) => (await queue(q).getJobLogs(id)).logs,
  counts: async ({ queue: q }) => queue(q).getJobCounts(),
  listed: async ({ queue: q, states }) => (await queue(q).getJobs(states)).map((job) => job.id),
  workers: async ({ queue: q }) => (await queue(q).getWorkers()).map((one) => one.rawname),
  pause: async ({ queue: q }) => queue(q).pause(),
  resume: async ({ queue: q }) => queue(q).resume(),
  retry: async ({ queue: q, id }) => (await queue(q).getJob(id)).retry(),
  remove: async ({ queue: q, id }) => (await queue(q).getJob(id)).remove(),
  promote: async ({ queue: q, id }) => (await queue(q).getJob(id)).promote(),
  metrics: async ({ queue: q, outcome }) => (await queue(q).getMetrics(outcome)).meta.count,
  schedule: async ({ queue: q, id, repeat, template }) => plain(await queue(q).upsertJobScheduler(id, repeat, template)),
  unschedule: async ({ queue: q, id }) => queue(q).removeJobScheduler(id),
  schedulers: async ({ queue: q }) => queue(q).getJobSchedulers(),
  listen: async ({ queue: q }) => void (await eventsOf(q)),
  finished: async ({ queue: q, id }) =>
    (await queue(q).getJob(id)).waitUntilFinished(await eventsOf(q), 30000),
  flow: async ({ tree }) => {
    const producer = new bullmq.FlowProducer({ connection });
    const made = await producer.add(tree);
    await producer.close();
    return made.job.id;
  },
  work: async ({ queue: q, concurrency }) => {
    const worker = new bullmq.Worker(q, async (job) => ({ node: job.data }), { connection, concurrency });
    await worker.waitUntilReady();
    workers.push(worker);
  },
  unwork: async () => void (await Promise.all(workers.splice(0).map((worker) => worker.close()))),
  board: async ({ queues: names }) => {
    const { createBullBoard } = require("@bull-board/api");
    const { BullMQAdapter } = require("@bull-board/api/bullMQAdapter");
    const { ExpressAdapter } = require("@bull-board/express");
    const server = new ExpressAdapter();
    createBullBoard({ queues: names.map((name) => new BullMQAdapter(queue(name))), serverAdapter: server });
    const app = require("express")();
    app.use("/", server.getRouter());
    return new Promise((resolve) => {
      const listening = app.listen(0, "127.0.0.1", () => resolve(listening.address().port));
      closers.push(() => listening.close());
    });
  },
};

readline.createInterface({ input: process.stdin }).on("line", async (line) => {
  const { n, verb, ...rest } = JSON.parse(line);
  let answer;
  try {
    answer = { n, ok: (await verbs[verb](rest)) ?? null };
  } catch (error) {
    answer = { n, error: String((error && error.message) || error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}).on("close", () => process.exit(0));
process.stdout.write(JSON.stringify({ n: 0, ok: require(`${library}/package.json`).version }) + "\n");
