"""Offline work on weights: quantisation by AWQ and GPTQ, with its calibration."""
