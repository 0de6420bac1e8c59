/** Example texts by the ids of their buttons; `hint` says what to do with one. */

export const EXAMPLES = {
  "example-short": {
    text:
      "The lighthouse keeper climbed the stairs at dusk. Far below, the sea was calm, and the last boats came home. " +
      "She lit the lamp, opened her book, and listened to the wind.",
  },
  "example-interrupt": {
    text:
      "Please stop me whenever you like. I am going to count the things that I can see from this window. " +
      "There is a garden with a high wall. There is a road, and a red car stands beside it. There is a river, and a " +
      "small boat moves on the water. There is a hill, and a white house stands on the top of it. There is a train, " +
      "and it is late again.",
    hint: "Press Speak, then Stop in the middle of a sentence: the page shows which words you heard.",
  },
  "example-long": {
    text:
      "The train left the city in the rain. For an hour there was nothing but grey roofs and wet streets behind the " +
      "glass. Then the houses ended, and the fields began.\n\n" +
      "A woman sat down on the other side of the table. She had a heavy coat, a small bag, and a book without a cover. " +
      "She did not open the book. She looked at the window, and then at her watch, and then at the window again.\n\n" +
      "“Are you going far?” she asked. I told her that I was going to the end of the line, to the old harbour. She " +
      "smiled. “Nobody goes there in winter,” she said. “The hotel is closed, and the boats do not run.”\n\n" +
      "I said that I knew the place well. When I was a child, my father kept the light on the rock outside the harbour. " +
      "Every evening he climbed a hundred and twenty steps. Every evening I counted them with him, and every evening I " +
      "lost my way somewhere after seventy.\n\n" +
      "The rain stopped. A thin line of gold lay between the clouds and the sea. The woman took her book, wrote a few " +
      "words on the first page, and gave it to me. “For the steps,” she said, “so that you have something to count.”\n\n" +
      "She left the train at the next station. I have read the book many times since then. It has a hundred and twenty " +
      "pages, and I have never lost my way.",
    hint: "A long text: listen while it arrives, and click into the waveform to move in it.",
  },
};
