// `fetch` that records requests.

/**
 * Returns a `fetchClient` for a stream, and the array of its requests, in order. `before` is awaited before each
 * request is sent; `rewrite` can replace the response.
 */
export function recorder({ before = () => {}, rewrite = (response) => response } = {}) {
  const requests = [];
  const fetchClient = async (input, init) => {
    const request = {
      method: init?.method ?? 'GET',
      query: Object.fromEntries(new URL(input).searchParams),
      startedAt: performance.now(),
    };
    requests.push(request);
    await before(request);
    const response = await fetch(input, init);
    request.respondedAt = performance.now();
    request.status = response.status;
    request.headers = Object.fromEntries(response.headers);
    return rewrite(response);
  };
  return { requests, fetchClient };
}
