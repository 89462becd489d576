// A fetch that remembers.

/**
 * A `fetchClient` for a stream, and all requests that went through it, in order. `before` sees each request first and
 * may hold it back; `rewrite` may change an answer on its way to the client.
 */
export function recorder({ before = () => {}, rewrite = (response) => response } = {}) {
  const requests = [];
  const fetchClient = async (input, init) => {
    const request = {
      method: init?.method ?? 'GET',
      query: Object.fromEntries(new URL(input).searchParams),
      begun: performance.now(),
    };
    requests.push(request);
    await before(request);
    const response = await fetch(input, init);
    request.answered = performance.now();
    request.status = response.status;
    request.headers = Object.fromEntries(response.headers);
    return rewrite(response);
  };
  return { requests, fetchClient };
}
