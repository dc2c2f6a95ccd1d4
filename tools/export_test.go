// SPDX-License-Identifier: Apache-2.0

package tools

// StepsOf is stepsOf for tests.
var StepsOf = stepsOf
