// Three operations by a client that is generated from the API's document; its answers go to a test as JSON.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

const [baseUrl, secretKey, writeKey] = process.argv.slice(2) as [string, string, string];
const server = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${secretKey}` } });
const site = createClient<paths>({ baseUrl, headers: { "X-Write-Key": writeKey } });

const body: components["schemas"]["NewBanner"] = { x_times: 2, y_hours: 24, z_duration_sec: 3, title: "Tea" };
const made = await server.POST("/admin/banners", { body });
if (made.error) throw new Error(made.error.detail);
const banners = await server.GET("/admin/banners", { params: { query: { limit: 10 } } });
const events = await site.POST("/v1/events", {
  body: { events: [{ event: "bought", distinct_id: "ada", properties: { price: 1, items: [{ name: "tea" }] } }] },
});
const refused = await site.GET("/admin/banners");
console.log(
  JSON.stringify({
    made: made.data.banner_id,
    banners: banners.data?.items.map((each) => [each.banner_id, each.title]),
    accepted: events.data?.accepted,
    refused: refused.error?.code,
  }),
);
