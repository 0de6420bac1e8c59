/** Short recordings that the browser keeps between visits, by a name. Without a database they last for the visit. */

const DATABASE = "voxcpm";
const STORE = "samples";

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
    await result((await store("readwrite")).put(audio, name));
  } catch {
    // private windows may have no database
  }
}
