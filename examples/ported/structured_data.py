"""Classify rows of a table with preprocessing layers: text categories and normalized numbers."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfdist

tfdist.start()

COUNT = 2000
rng = np.random.default_rng(0)
table = {
    "colour": rng.choice(["red", "green", "blue"], COUNT),
    "age": rng.uniform(20, 80, COUNT).astype("float32"),
    "weight": rng.normal(70, 12, COUNT).astype("float32"),
}
label = ((table["colour"] == "red") ^ (table["age"] > 50)).astype("int32")
data = tf.data.Dataset.from_tensor_slices((table, label))
train, test = data.take(1600).batch(64), data.skip(1600).batch(64)

colour = layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")
age, weight = layers.Normalization(axis=None), layers.Normalization(axis=None)
age.adapt(table["age"])
weight.adapt(table["weight"])

inputs = {
    "colour": keras.Input((1,), dtype="string", name="colour"),
    "age": keras.Input((1,), name="age"),
    "weight": keras.Input((1,), name="weight"),
}
features = [colour(inputs["colour"]), age(inputs["age"]), weight(inputs["weight"])]
hidden = layers.Dense(32, activation="relu")(layers.Concatenate()(features))
model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(hidden))

model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
model.fit(train, epochs=5, validation_data=test)
print(f"test accuracy {model.evaluate(test, verbose=0)[1]:.3f}")
