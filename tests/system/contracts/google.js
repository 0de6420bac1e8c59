// Speaks with the published client of Google for Node: node google.js ADDRESS TEXT VOICE.
// Prints a JSON object: audio in base64, whole and from a stream, the voices, and an error with its details.
const { TextToSpeechClient } = require('@google-cloud/text-to-speech');
const { grpc } = require('google-gax');

const [address, text, name] = process.argv.slice(2);
const [apiEndpoint, port] = address.split(':');
const client = new TextToSpeechClient({ apiEndpoint, port: Number(port), sslCreds: grpc.credentials.createInsecure() });
const voice = { name, languageCode: 'en-US' };
const audioConfig = { audioEncoding: 'LINEAR16' };

function streamed() {
  return new Promise((resolve, reject) => {
    const parts = [];
    const stream = client.streamingSynthesize();
    stream.on('data', response => parts.push(response.audioContent));
    stream.on('error', reject);
    stream.on('end', () => resolve(Buffer.concat(parts)));
    stream.write({ streamingConfig: { voice, streamingAudioConfig: { audioEncoding: 'PCM', sampleRateHertz: 16000 } } });
    for (const word of text.split(' ')) stream.write({ input: { text: `${word} ` } });
    stream.end();
  });
}

async function main() {
  const [whole] = await client.synthesizeSpeech({ input: { text }, voice, audioConfig });
  const [listed] = await client.listVoices({});
  const failed = await client
    .synthesizeSpeech({ input: { text }, voice, audioConfig: { ...audioConfig, pitch: 4 } })
    .then(() => null, error => error);
  const violations = failed.statusDetails.flatMap(detail => detail.fieldViolations ?? []);
  console.log(JSON.stringify({
    whole: whole.audioContent.toString('base64'),
    streamed: (await streamed()).toString('base64'),
    voices: listed.voices.map(one => one.name),
    error: { code: failed.code, fields: violations.map(one => one.field) },
  }));
  await client.close();
}

main().catch(error => { console.error(error); process.exit(1); });
