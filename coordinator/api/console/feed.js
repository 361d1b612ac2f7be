// The coordinator's events. The browser's own way to connect again gives up on some errors; this one
// does not, and it also finds a coordinator that holds the connection and says nothing.

const SILENCE_MS = 5000;
const PAUSE_MS = 1000;

/** Call onState with each state, and onLink with "open", "silent" or "lost" when that changes. */
export function follow(url, { onState, onLink }) {
  let source = null;
  let silence = 0;

  function listen() {
    source = new EventSource(url);
    source.onmessage = (message) => {
      heard("open");
      onState(JSON.parse(message.data));
    };
    source.onerror = () => {
      source.close();
      clearTimeout(silence);
      onLink("lost");
      setTimeout(listen, PAUSE_MS);
    };
  }

  function heard(link) {
    clearTimeout(silence);
    silence = setTimeout(() => onLink("silent"), SILENCE_MS);
    onLink(link);
  }

  listen();
}
