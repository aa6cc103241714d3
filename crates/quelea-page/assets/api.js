// The API of the server: see docs/seeing-a-run.md. One request of a kind is under way at a time.

const pending = new Map();

async function get(path, query) {
  const words = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  const response = await fetch(`${path}?${new URLSearchParams(words)}`, { cache: "no-store" });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error || `the server answered ${response.status}`);
  return answer;
}

// Of several calls while one is under way, only the newest follows it; `lane` tells calls of a kind apart.
export function latest(path, query, use, failed, lane = 0) {
  const key = `${path} ${lane}`;
  const waiting = pending.get(key);
  if (waiting) {
    waiting.next = [path, query, use, failed, lane];
    return;
  }
  const slot = { next: null };
  pending.set(key, slot);
  get(path, query).then(use, failed).finally(() => {
    pending.delete(key);
    if (slot.next) latest(...slot.next);
  });
}

export const runs = () => get("/api/runs", {});
export const description = (run) => get("/api/run", { run });
export const curves = (run) => get("/api/curves", { run });

export async function act(run, action, rank) {
  const words = Object.entries({ run, action, rank }).filter(([, value]) => value !== undefined && value !== null);
  const response = await fetch(`/api/act?${new URLSearchParams(words)}`, { method: "POST", headers: { "x-quelea-action": "1" } });
  const answer = await response.json().catch(() => ({}));
  return response.ok ? answer.done : `not done: ${answer.error || response.status}`;
}
