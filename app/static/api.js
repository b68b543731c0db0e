// The JSON API: answers as objects, problems as errors that carry the server's own words.
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `the server answered ${status}`);
    this.status = status;
    this.body = body;
  }
}

/** path("/parameters", name, "slots") -> "/parameters/model.…/slots" */
export function path(...parts) {
  return parts.map((part) => (part.startsWith("/") ? part : `/${encodeURIComponent(part)}`)).join("");
}

/** query({q: "x", rank: null}) -> "?q=x" */
export function query(values) {
  const given = Object.entries(values).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export async function get(url, signal) {
  return answer(await fetch(url, { signal, headers: { Accept: "application/json" } }));
}

export async function post(url, body = {}) {
  return answer(
    await fetch(url, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    }),
  );
}

async function answer(response) {
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Problem(response.status, body);
  return body;
}
