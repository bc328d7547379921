"""Forecast a time series with an LSTM, from windows that Keras's own helper shuffles."""

import keras
import numpy as np
from keras import layers

import tfdist

tfdist.start()

PAST = 48
rng = np.random.default_rng(0)
hours = np.arange(4000)
series = (
    np.sin(2 * np.pi * hours / 24) + 0.5 * np.sin(2 * np.pi * hours / 168) + rng.normal(0, 0.05, len(hours))
)
series = series.astype("float32")[:, None]

split = 3200
train = keras.utils.timeseries_dataset_from_array(
    series[: split - 1], series[PAST:split], sequence_length=PAST, batch_size=64, shuffle=True
)
test = keras.utils.timeseries_dataset_from_array(
    series[split:-1], series[split + PAST :], sequence_length=PAST, batch_size=64
)

model = keras.Sequential([keras.Input((PAST, 1)), layers.LSTM(16), layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
history = model.fit(train, epochs=3, validation_data=test)

print(f"mean absolute error {model.evaluate(test, verbose=0)[1]:.3f}")
