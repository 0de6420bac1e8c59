/** The settings of the speech: their values, and their faults as they are typed. The ranges are those of index.html. */

const $ = (id) => document.getElementById(id);
const NUMBERS = { cfg: "cfg_value", temperature: "temperature", seed: "seed" };
const SLIDERS = { speed: { option: "speed", usual: 1 }, volume: { option: "volume_gain_db", usual: 0 } };
const LANGUAGE = /^[\p{L}]{2,}([-_ ][\p{L}\d]+)*$/u;

/** @param {() => void} onChange called when a value changes */
export function watchFields(onChange) {
  for (const input of document.querySelectorAll("[data-checked]")) {
    const fault = document.createElement("p");
    fault.id = `${input.id}-fault`;
    fault.className = "fault";
    fault.setAttribute("role", "status");
    input.after(fault);
    input.setAttribute("aria-describedby", `${input.id}-range ${fault.id}`);
    input.addEventListener("input", () => check(input));
  }
  for (const id of Object.keys(SLIDERS)) $(id).addEventListener("input", () => showSlider(id));
  $("reset").addEventListener("click", () => {
    restoreFields({});
    onChange();
  });
  for (const input of settings()) input.addEventListener("input", onChange);
  Object.keys(SLIDERS).forEach(showSlider);
}

function settings() {
  return document.querySelectorAll("[data-setting]");
}

function showSlider(id) {
  const value = Number($(id).value);
  const text = id === "speed" ? `${value.toFixed(2).replace(/0$/, "")}×` : `${value > 0 ? "+" : ""}${value} dB`;
  $(`${id}-value`).textContent = text;
  $(id).setAttribute("aria-valuetext", text);
}

/** The fault of a field in a sentence; empty if its value can be used. */
function faultOf(input) {
  const label = input.labels[0].firstChild.textContent.trim();
  if (input.id === "language") {
    const fits = !input.value.trim() || LANGUAGE.test(input.value.trim());
    return fits ? "" : `${label} must be a name or a tag, such as German or pt-BR.`;
  }
  const { badInput, rangeUnderflow, rangeOverflow, stepMismatch } = input.validity;
  if (!(badInput || rangeUnderflow || rangeOverflow || stepMismatch)) return "";
  const kind = input.step === "any" ? "a number" : "a whole number";
  return `${label} must be ${kind} from ${input.min} to ${input.max}.`;
}

function check(input) {
  const fault = faultOf(input);
  $(`${input.id}-fault`).textContent = fault;
  if (fault) input.setAttribute("aria-invalid", "true");
  else input.removeAttribute("aria-invalid");
  return fault;
}

/** The values as options of a stream. Throws an Error with the first fault, and leads to its field. */
export function settingsOfStream() {
  for (const input of document.querySelectorAll("[data-checked]")) {
    const fault = check(input);
    if (!fault) continue;
    input.closest("details").open = true;
    input.focus();
    throw new Error(fault);
  }
  const isUnset = (id) => $(id).value.trim() === "" || $(id).closest(".fields").hidden;
  const number = (id) => (isUnset(id) ? undefined : Number($(id).value));
  const found = {
    timesteps: number("timesteps"),
    ...languages(),
    first_segment: $("eager").checked ? "eager" : undefined,
  };
  for (const [id, option] of Object.entries(NUMBERS)) found[option] = number(id);
  for (const [id, { option, usual }] of Object.entries(SLIDERS)) {
    if (Number($(id).value) !== usual) found[option] = Number($(id).value);
  }
  return found;
}

/** The language of the text, which is also that of the speech if the model can be told one. */
function languages() {
  const told = !$("speech-language-field").hidden;
  const language = (told ? $("speech-language").value : $("language").value.trim()) || undefined;
  return { language, speech_language: told ? language : undefined };
}

/** The values of all settings by their ids, as `restoreFields` takes them. */
export function savedFields() {
  return Object.fromEntries([...settings()].map((one) => [one.id, one.type === "checkbox" ? one.checked : one.value]));
}

/** @param {object} values by ids; others have their first values again */
export function restoreFields(values) {
  for (const one of settings()) {
    if (one.type === "checkbox") one.checked = values[one.id] ?? one.defaultChecked;
    else one.value = values[one.id] ?? one.defaultValue ?? "";
    if (one.selectedIndex === -1) one.selectedIndex = 0; // another model had this value
    if (one.dataset.checked !== undefined) check(one);
  }
  Object.keys(SLIDERS).forEach(showSlider);
}

/** Show the settings that the model has, and fill in what depends on it. An older server does not list them. */
export function describeFields(model) {
  for (const [id, option] of Object.entries({ ...NUMBERS, timesteps: "timesteps" })) {
    const field = $(id).closest(".fields");
    field.hidden = model.sampling.length > 0 && !model.sampling.includes(option);
  }
  describeLanguages(model.speech_languages);
  const steps = model.timesteps.map((count) => new Option(String(count), String(count)));
  const chosen = $("timesteps").value;
  $("timesteps").replaceChildren(new Option(`Default (${model.default_timesteps})`, ""), ...steps);
  $("timesteps").value = steps.some(({ value }) => value === chosen) ? chosen : "";
  $("cfg").placeholder = String(model.default_cfg_value);
  $("temperature").placeholder = String(model.default_temperature);
}

/** A model that can be told a language has a choice of them; other models take the language of the text alone. */
function describeLanguages(tags) {
  const names = new Intl.DisplayNames("en", { type: "language" });
  const choices = tags.map((tag) => new Option(names.of(tag), tag)).sort((one, other) => one.text.localeCompare(other.text));
  $("speech-language").replaceChildren(new Option("That of the text", ""), ...choices);
  $("speech-language-field").hidden = !tags.length;
  $("language").closest(".fields").hidden = tags.length > 0;
}
