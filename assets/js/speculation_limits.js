// Bounds that the server states too (engine.config.MAX_DRAFTS, db.figures.NUM_POSITIONS).

export const NUM_POSITIONS = 15;
