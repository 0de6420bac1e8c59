/** Short recordings that the browser keeps between visits, by a name. Without a database they last for the visit. */

const DATABASE = "voxcpm";
const STORE = "samples";
const MOST = 100; // recordings; then all are dropped, since those of voices that are gone are never asked for

const inMemory = new Map();

/** The result of a request to the database. */
function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function store(mode) {
  const opening = indexedDB.open(DATABASE, 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
  const database = await result(opening);
  const transaction = database.transaction(STORE, mode);
  transaction.oncomplete = () => database.close();
  return transaction.objectStore(STORE);
}

/** @returns {Promise<ArrayBuffer | undefined>} */
export async function read(name) {
  if (inMemory.has(name)) return inMemory.get(name);
  try {
    return await result((await store("readonly")).get(name));
  } catch {
    return undefined;
  }
}

/** @param {ArrayBuffer} audio */
export async function write(name, audio) {
  inMemory.set(name, audio);
  try {
    const samples = await store("readwrite");
    if ((await result(samples.count())) >= MOST) samples.clear();
    await result(samples.put(audio, name));
  } catch {
    // private windows may have no database
  }
}
