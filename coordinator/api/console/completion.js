// A streamed answer from the OpenAI endpoint.

/** What the service answered instead of a completion. */
export class Refusal extends Error {}

/** Yield {text} and, in the end, {usage, finishReason}; throws Refusal, or AbortError when left. */
export async function* stream(messages, { temperature, maxTokens, signal }) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    signal,
    body: JSON.stringify({
      messages,
      temperature,
      max_tokens: maxTokens,
      stream: true,
      stream_options: { include_usage: true },
    }),
  });
  if (!response.ok) throw new Refusal(await complaint(response));
  let finishReason = null;
  for await (const payload of payloads(response.body)) {
    if (payload.error) throw new Refusal(payload.error.message);
    const [choice] = payload.choices;
    if (choice?.delta.content) yield { text: choice.delta.content };
    finishReason = choice?.finish_reason ?? finishReason;
    if (payload.usage) yield { usage: payload.usage, finishReason };
  }
}

async function complaint(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

async function* payloads(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const text = frame.replace(/^data: /, "");
      if (frame.startsWith("data: ") && text !== "[DONE]") yield JSON.parse(text);
    }
  }
}
