// Builds the page. A section that fails says so in its place; the others are still there.

const SECTIONS = {
  run: [
    headerOfRun,
    learning,
    leagueSection,
    episodeSection,
    memoryLength,
    diagnostics,
    speedByStage,
    runtimeOfActors,
    eventList,
    configTable,
  ],
  comparison: [headerOfComparison, comparedCurves, results, runTable, differenceTable],
};

startTheme();
for (const build of SECTIONS[DATA.kind]) {
  try {
    build(DATA);
  } catch (error) {
    console.error(error);
    document
      .getElementById("content")
      .append(note(`This part could not be drawn (${build.name}: ${error.message}).`));
  }
}
document.getElementById("footer").append(`Made ${date(DATA.made)} by Recollect. This file needs no network.`);
